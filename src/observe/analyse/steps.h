// SPDX-License-Identifier: Apache-2.0
// Training steps without a change to the program: from marks if the capture has any, else from the
// sequence of kernels repeating itself.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/analyse/host_timeline.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// How steps are detected, found on the first window of a capture and then applied to all.
struct StepRule {
  enum class By : uint8_t { nothing, ranges, anchor } by = By::nothing;
  uint32_t device = 0;  // the one with most operations: its times bound the steps
  // ranges: names of the spans with the digits at the end cut off ("ProfilerStep#")
  std::string prefix;
  // anchor: a step begins where this operation starts
  uint32_t anchor_name = 0, anchor_stream = 0;
  int64_t anchor_size = 0;
  bool with_calls = false;    // the anchor is also detected by the host's calls before it
  uint8_t anchor_before = 0;  // bits, as find_step_rule says
  int64_t period_ops = 0;     // operations of the anchor's stream a step
  double match = 0;           // share of operations that are the same one period later
  std::string describe() const;
};

// At least three steps must show. Marks win over the sequence. A sequence counts when 85% of its
// operations recur one period later. They are detected by name and grid and, where that makes the
// period longer or it is one operation, also by what the issuing thread did before: waited for the
// device (1), allocated (2), made no call for 1 ms (4). Of the operations that occur once a period,
// the one after the longest usual pause is the anchor. Where nothing repeats over the whole, the
// last half or quarter of the operations may have another rule than what ran before. Cost: O(n) and
// a few passes.
StepRule find_step_rule(const Trace& trace, const HostTimeline& host);

// Where steps begin on the device, in order. `regular[i]`: whether the time from begin i to begin
// i + 1 is one step (its number of operations is within a fifth of the period's). By ranges: the
// start of the first operation that was issued inside the range.
struct StepMarks {
  std::vector<int64_t> begin_ns;
  std::vector<bool> regular;
};
StepMarks mark_steps(const StepRule& rule, const Trace& trace, const HostTimeline& host);

// Where a program gets going: the first step from which on less than a twentieth of the time lies
// outside of regular steps (a model is built and compiled, another loop runs first); 0 when that is
// beyond half of the steps.
size_t start_up_steps(const StepMarks& marks);

// How many leading steps are warm-up: those longer than 1.25 medians of all, at most half;
// and what comes before one of ten medians among the first 20.
size_t warm_up_steps(const std::vector<int64_t>& durations_ns);

// Growth of the step time from the first quarter to the last (medians), as a ratio; 1 when there
// are fewer than 12 steps or when fewer than 70% of pairs of steps agree with the direction.
double step_drift(const std::vector<int64_t>& durations_ns);

}  // namespace saturate::observe
