// SPDX-License-Identifier: Apache-2.0
// Which operation of a program marks its steps, found from what repeats.
#pragma once
#include <cstdint>
#include <string>

#include "observe/analyse/host_timeline.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// What operations are told apart by. Coarse: kernels by their name and not their grid, all graphs as
// one: batches of several shapes are then alike.
struct StepSymbol {
  OpKind kind = OpKind::kernel;
  uint32_t name = 0;   // kNone: any graph
  int64_t size = -1;   // blocks or bytes; -1: any
  uint8_t before = 0;  // HostCallsBefore, of a symbol with calls
  bool operator==(const StepSymbol&) const = default;
};
StepSymbol step_symbol(const DeviceOp& op, bool coarse, uint8_t before);

// Steps are made of kernels and graphs; copies and fills come and go (logging, checkpoints). Of a
// program that has none of them, of everything.
inline bool step_work(const DeviceOp& op, bool with_copies) {
  return with_copies || op.kind == OpKind::kernel || op.kind == OpKind::graph;
}

struct StepAnchor {
  StepSymbol symbol;
  uint32_t process = 0;  // of the streams that it may be on
  bool coarse = false, with_calls = false, with_copies = false;
  // Operations of a step, at least and at most: those of another number are something else.
  int64_t usual_ops = 0, least_ops = 0, most_ops = 0;
  int64_t least_copies = 0;
  double explained = 0;  // share of the time that lies in what all steps have in common
};

bool is_anchor(const StepAnchor& anchor, const DeviceOp& op, uint8_t before);

// The operation with which the steps of `device` begin; `explained` 0 when there are none.
//
// Each symbol that occurs three times or more cuts the work into stretches. It explains the time of
// those operations that its usual stretch has, less where a stretch lacks some of them; by grid, or
// coarsely where the host and the device meet in it (a copy or a wait) or the optimizer's kernels
// run. Of the symbols that explain more than half, the smallest such stretch is the step; it gives
// way to a larger one that explains more by up to 96 of it and little else (micro-batches, layers),
// unless its own length varies. Where the length of what was chosen varies, a smaller stretch wins
// whose operations take turns: six of them or more, an optimizer's among them, once in each, most
// stretches alike. Of the symbols that then occur once in a step, the one before which
// the device usually stands still for longest is the anchor.
//
// Operations before `from_ns` are passed over. Cost: O(n) for each of at most 32 symbols.
StepAnchor find_step_anchor(const Trace& trace, const HostTimeline& host, uint32_t device,
                            int64_t from_ns);

}  // namespace saturate::observe
