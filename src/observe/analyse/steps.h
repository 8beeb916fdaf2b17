// SPDX-License-Identifier: Apache-2.0
// Training steps without a change to the program: from marks if the capture has any, else from the
// sequence of kernels repeating itself.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/analyse/host_timeline.h"
#include "observe/analyse/step_search.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// How steps are detected, found on the first window of a capture and then applied to all.
struct StepRule {
  enum class By : uint8_t { nothing, ranges, anchor } by = By::nothing;
  uint32_t device = 0;  // the one with most operations: its times bound the steps
  // ranges: names of the spans with the digits at the end cut off ("ProfilerStep#")
  std::string prefix;
  // anchor: a step begins where this operation starts
  StepAnchor anchor;
  std::string begins_with;  // the anchor's name, for the reader
  std::string describe() const;
};

// At least two steps must show whole. Marks win over what repeats (step_search.h). Where nothing
// repeats over the whole, the last half or quarter of the operations may have another rule than what
// ran before.
StepRule find_step_rule(const Trace& trace, const HostTimeline& host);

// Where steps begin on the device, in order. `regular[i]`: whether the time from begin i to begin
// i + 1 is one step (its number of operations is within the anchor's bounds). By ranges: the
// start of the first operation that was issued inside the range.
struct StepMarks {
  std::vector<int64_t> begin_ns;
  std::vector<bool> regular;
};
StepMarks mark_steps(const StepRule& rule, const Trace& trace, const HostTimeline& host);

// Where a program gets going: the first step from which on less than a twentieth of the time lies
// outside of regular steps (a model is built and compiled, another loop runs first), but not beyond
// twenty regular ones in a row, which a pause only interrupts (a new shape is compiled); 0 when
// that is beyond half of the steps and fewer regular ones follow than lie before.
size_t start_up_steps(const StepMarks& marks);

// The first step behind the last for which code was made, where that happened for at most one step in 33, took a fifth of
// the time and more, and a third of the steps, twenty at least, follow: what is made so rarely a longer run pays once. 0
// otherwise.
size_t steps_after_compiling(const StepMarks& marks, const Trace& trace);

// The first step behind the last pause, one of thirty medians and more, where pauses were at most one step in 33, took a
// twentieth of the time and more, and at least twice as many steps follow without any: what came again with its steps
// would have come again there. 0 otherwise.
size_t steps_after_pauses(const StepMarks& marks);

// How many leading steps are warm-up: those longer than 1.25 medians of all, at most half and at
// most 20 (more are a phase of the program's own); and what comes before one of ten medians among
// the first 20.
size_t warm_up_steps(const std::vector<int64_t>& durations_ns);

// Growth of the step time from the first quarter to the last (medians), as a ratio; 1 when there
// are fewer than 12 steps or when fewer than 70% of pairs of steps agree with the direction.
double step_drift(const std::vector<int64_t>& durations_ns);

}  // namespace saturate::observe
