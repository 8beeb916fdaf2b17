// SPDX-License-Identifier: Apache-2.0
// Before against after, or one machine against another.
#pragma once
#include <string>
#include <vector>

#include "observe/report/diagnosis.h"

namespace saturate::observe {

// "step>3%": the metric of the second capture may be at most this much above that of the first.
// Metrics: step, idle, busy, launches, or the id of a leaf; all per step.
struct Gate {
  std::string metric;
  double percent = 0;
};
// Errors    Error{invalid_argument} naming the metrics there are.
Gate parse_gate(const std::string& text);

struct Comparison {
  std::string text;
  std::vector<std::string> failed;  // one line for each gate that did not hold
};
// Times are per step; where one of the captures has no steps, of their whole length.
// Errors    Error{invalid_argument} when there are gates then.
Comparison compare(const Diagnosis& a, const Diagnosis& b, const std::vector<Gate>& gates);

}  // namespace saturate::observe
