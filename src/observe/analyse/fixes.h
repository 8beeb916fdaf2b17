// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "observe/analyse/analysis.h"
#include "observe/analyse/replay.h"

namespace saturate::observe {

enum class FixKind : uint8_t {
  graphs,         // issue a step's work at once
  host_work,      // move long host work off the thread that issues
  syncs,          // do not wait for the device
  loader,         // have the next batch ready
  copies,         // pinned memory, copies beside the computation
  allocator,      // keep memory instead of giving it back
  code_load,      // load and compile before the first step
  communication,  // beside the computation
  precision,      // tensor cores
  mixed,          // bf16 for products and what lies between them
  fusion,         // fewer passes over memory
  transfers,      // few large copies instead of many small ones
  cores,          // a core whenever the launching thread wants one
  clocks,         // the clock that the chip has when nothing holds it down
  layout,         // one order of memory from layer to layer
  attention,      // no mask of numbers
  recompute,      // keep what the backward pass needs instead of computing it again
  weight_casts,   // weights rounded to 16 bits once
  product_types,  // products in a type that fast kernels take
  device_copies,  // buffers changed where they lie
  kernel_copies,  // what kernels copy, read where it lies
  one_attention,  // attention in one kernel, which does not write its weights
  float64,        // float32 where nobody asked for more
  transforms,     // Fourier transforms of lengths that need no detour
  sorts,          // an order that is made once, or none
  slow_kernels,   // other kernels of the same library
  fewer_bytes,    // what is copied to the device in a smaller type
  micro_batches,  // one batch in place of several whose gradients are added up
  growth,         // steps as short as the first ones
  batch,          // a larger batch: gain in throughput
  processes,      // several processes on one device: gain in throughput
};
struct FixInfo {
  std::string_view id, title;
};
const FixInfo& fix_info(FixKind kind);

struct Fix {
  FixKind kind;
  double speedup = 1;  // of throughput for batch and processes
  // Whether `speedup` bounds what the change brings, under what `assumes` says. Else what goes along
  // with the cause is not known, and `speedup` is an estimate between `low` and `high`.
  bool ceiling = true;
  double low = 0, high = 0;  // of an estimate; 0 for a ceiling
  double step_ns = 0;        // of a step with the fix; 0 for batch and processes
  double share = 0;          // of the time that the attribution puts down to it
  // The part of the time that the fix removes where the attribution puts it down to it: what makes
  // it a cause. What it removes beyond is time of other causes, which it only hides.
  double own = 0;
  double shared = 0;    // the part of its gain that the first fix of the list brings already
  bool unsure = false;  // it may bring nothing: the capture does not tell
  bool cures = true;    // a cause; not throughput, nor a clock under nothing but the power cap
  std::vector<FixKind> with;  // applied as well, since it cannot be without them
  std::string obstacle;       // why not: a sentence
  bool no_two_alike = false;  // of graphs: hardly two steps have the same kernels and grids
  std::string evidence, action, caveat, assumes;
};

// Two causes side by side: without one of them the other takes as long.
struct Pair {
  FixKind first, second;
  double speedup = 1, step_ns = 0;  // with both
  bool ceiling = true;
  double low = 0, high = 0;  // as of a fix
};

struct FixReport {
  bool numbers = false;  // whether the replay was good enough
  std::string why_not;   // else: why there are none
  double replay_error = 0, unexplained = 0;
  double replay_step_ns = 0;  // the unchanged replay's
  bool whole_steps = false;   // else stretches of operations stood in for steps
  int64_t window_steps = 0;
  DispatchScale dispatch;      // below 1: what recording adds to the host was taken out
  bool step_given = false;     // the time of a step without recording was given
  std::vector<Fix> worth;      // at least kWorth or kWorthProcesses, in order of what they own
  std::vector<Fix> not_worth;  // below; the evidence says why
  // What may bring as much as its upper end or nothing: the capture shows where, but not whether.
  std::vector<Fix> possible;
  std::vector<Pair> together;  // of `worth` and `not_worth`, the largest gain first
};
constexpr double kWorth = 1.03;
// Of a larger batch and of several processes, which cost memory and make no step faster.
constexpr double kWorthProcesses = 1.2;
// Of fusing: a compiler has to be brought in, and joins less than could be.
constexpr double kWorthFusion = 1.2;
// Of copies by kernels, by the time that they take of the device, for some have to be: what comes next wants another order, or one piece.
constexpr double kWorthCopies = 1.1;
// Of graphs that only shorten the gaps between the kernels of a device that is busy.
constexpr double kWorthGaps = 1.05, kBusy = 0.9;
// Of a fix that may bring nothing, by its upper end.
constexpr double kWorthPossible = 1.2;
// Of mixed precision, by what TF32 would bring: the type of everything has to be thought about.
constexpr double kWorthMixed = 1.2;
constexpr double kMaxReplayError = 0.05;
constexpr double kMaxUnexplained = 0.5;

// Whether the gain is one of throughput, not of the time of a step. Such a change cures no cause.
constexpr bool is_throughput(FixKind kind) {
  return kind == FixKind::batch || kind == FixKind::processes;
}

// Whether it leaves the kernels as they are, and closes gaps between them.
constexpr bool is_outside_kernels(FixKind kind) {
  return kind <= FixKind::code_load || kind == FixKind::transfers || kind == FixKind::cores;
}

// What held a device's clock down, from counters beside the capture.
struct ClockHold {
  double speed = 1;  // of the full clock, on average
  bool power = false, heat = false, supply = false, settings = false;  // kinds of reasons
  double power_part = 0;  // of the samples with work, those in which the power cap held it down
  std::string evidence;
};

// Replays every change and ranks them by what they own; one that cannot be applied as things are
// stands behind what is in its way. Bounds as Fix says: nothing is subtracted for what a change
// costs; gains of several fixes do not add up. Evidence and first action name what the capture
// shows, in the words of `analysis.framework`. `untraced_step_ns`: what a step takes without
// recording, 0 when not known. Errors    as Replay::scale_dispatch's.
FixReport find_fixes(Replay replay, const Analysis& analysis, double untraced_step_ns = 0,
                     const ClockHold& clock = {});

}  // namespace saturate::observe
