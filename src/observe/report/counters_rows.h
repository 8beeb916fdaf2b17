// SPDX-License-Identifier: Apache-2.0
// Counters as people read them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "observe/system/counters.h"

namespace saturate::observe {

struct CounterRow {
  int gpu = -1;
  std::string title, mean, range, per_step;  // per_step: empty where it says nothing
  std::string meaning;
};

// In the order of the counters. step_ns: 0 where steps are not known.
std::vector<CounterRow> counter_rows(const Counters& counters, double step_ns);
// One value of a counter with its unit, as "512 W".
std::string counter_text(const CounterInfo& info, double value);
// The mean of a counter over its GPUs; empty when it was not seen.
std::optional<double> counter_mean(const Counters& counters, const CounterInfo& info);
// "GPU 0, NVIDIA H200", "processes and machine".
std::string counter_group(const Counters& counters, int gpu);
// A section of the text report; empty without counters.
std::string counters_text(const Counters& counters, double step_ns);

}  // namespace saturate::observe
