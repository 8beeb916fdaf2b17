// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fixes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "observe/analyse/fix_words.h"

namespace saturate::observe {
namespace {

// Shorter stretches of host code between two calls are never the program's own work.
constexpr int64_t kOwnWorkNs = 100'000;
constexpr int64_t kGraphLaunchNs = 8'000;  // of the host, for a graph of some ten nodes
// fp32 against TF32 on tensor cores at most: 66.9 to 494.7 TFLOP/s dense on an H100 (data sheet).
constexpr double kTensorRatio = 7.4;
constexpr int64_t kBusBytesPerNs = 64;  // PCIe 5 with 16 lanes, one direction, before its overhead

// Of dispatch, once what torch.profiler adds is out: it took 1.7 to 1.9 times as long where that
// showed (an H200, PyTorch 2.11).
constexpr double kProfilerLeaves = 1 / 1.9;

constexpr std::array<FixInfo, 15> kInfo = {{
    {"graphs", "CUDA Graphs"},
    {"host_work", "host work off the launching thread"},
    {"syncs", "no waiting for the device"},
    {"loader", "data ready in advance"},
    {"copies", "pinned, overlapped copies"},
    {"allocator", "no allocation in the step"},
    {"code_load", "load code before the steps"},
    {"communication", "overlapped communication"},
    {"precision", "tensor cores (TF32 or mixed precision)"},
    {"fusion", "fused kernels"},
    {"transfers", "larger transfers"},
    {"cores", "a core for the launching thread"},
    {"clocks", "clocks at the full rate"},
    {"batch", "batch x2"},
    {"processes", "several processes (MPS)"},
}};

bool is_waiting_copy(const ReplayEvent& e) { return e.kind == ReplayCall::blocking_copy; }

void drop_wait(ReplayEvent& e) {
  e.waits_for = kNone;
  e.call_ns = std::min<int64_t>(e.call_ns, 2'000);
}

// Kernels follow each other without a gap and without a launch each; what is a graph already keeps
// its launch and the gap before it. A wait for the device cannot be captured: after each one
// another graph has to be launched.
class GraphsEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    const bool graph = e.ops > 1 || (e.ops == 1 && ops->leaf == Leaf::graph);
    for (uint32_t i = graph ? 1 : 0; i < e.ops; ++i) ops[i].back_to_back = true;
    const bool dispatch =
        e.host_ns + e.blocked_ns + e.no_core_ns <= kDispatchNs;  // one thread wakes another
    if (dispatch) e.host_ns = e.blocked_ns = e.no_core_ns = 0;
    const bool launch = e.kind == ReplayCall::launch && !graph;
    if (launch || e.kind == ReplayCall::copy || e.kind == ReplayCall::other) e.call_ns = 0;
    if (waited_ && e.ops > 0 && dispatch) e.call_ns = std::max(e.call_ns, kGraphLaunchNs);
    if (e.waits_for != kNone)
      waited_ = true;
    else if (e.ops > 0)
      waited_ = false;
  }

 private:
  bool waited_ = false;
};

// Copies to the device take no time of their own: serial_ns adds what the bus needs. A wait for a
// copy goes with it. Of a run of small copies without a kernel between them one call stays: they
// travel as one block.
class CopiesEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool in = e.ops > 0, small = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i) {
      in = in && (ops[i].leaf == Leaf::copy_in || ops[i].leaf == Leaf::copy_in_pageable);
      small = small && ops[i].bytes < kSmallCopy;
      if (ops[i].leaf != Leaf::copy_in && ops[i].leaf != Leaf::copy_in_pageable) continue;
      ops[i].duration_ns = 0;
      ops[i].from_call_start = false;
    }
    const bool waits_for_copy = e.waits_for != kNone && e.waits_for >= first_ && e.waits_for < end_;
    if (in && is_waiting_copy(e)) drop_wait(e);
    if (e.kind == ReplayCall::sync && waits_for_copy) drop_wait(e);
    if (run_ && ((in && small) || e.ops == 0)) {
      if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      if (in || e.kind == ReplayCall::sync || e.kind == ReplayCall::other) e.call_ns = 0;
    }
    if (in) {
      first_ = e.first_op;
      end_ = e.first_op + e.ops;
    }
    if (e.ops > 0) run_ = in && small;
  }

 private:
  uint32_t first_ = 0, end_ = 0;  // operations of the last copy to the device
  bool run_ = false;
};

// Of a run of small copies to the device without a kernel between them the first call stays; the
// others take only what the bus needs for their bytes.
class TransfersEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool small = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i)
      small = small && (ops[i].leaf == Leaf::copy_in || ops[i].leaf == Leaf::copy_in_pageable) &&
              ops[i].bytes < kSmallCopy;
    if (run_ && (small || e.ops == 0)) {
      if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      if (small || e.kind == ReplayCall::sync || e.kind == ReplayCall::other) {
        e.call_ns = 0;
        e.waits_for = kNone;
      }
      for (uint32_t i = 0; i < e.ops; ++i) {
        ops[i].duration_ns = std::min(ops[i].duration_ns, ops[i].bytes / kBusBytesPerNs);
        ops[i].from_call_start = false;
        ops[i].back_to_back = true;
      }
    }
    if (e.ops > 0) run_ = small;
  }

 private:
  bool run_ = false;
};

// What computes goes with the clock; memory, links and the host do not.
bool follows_clock(Leaf leaf) {
  return leaf == Leaf::tensor || leaf == Leaf::matrix || leaf == Leaf::other_kernel ||
         leaf == Leaf::graph || leaf == Leaf::low_grid || leaf == Leaf::tiny;
}

Replay::Edit faster_clock(double speed) {
  return [speed](ReplayEvent& e, ReplayOp* ops) {
    for (uint32_t i = 0; i < e.ops; ++i) {
      if (follows_clock(ops[i].leaf))
        ops[i].duration_ns = static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) * speed);
    }
  };
}

// The changes that concern one event at a time, and those that carry state along.
Replay::Edit simple_edit(FixKind kind) {
  switch (kind) {
    case FixKind::graphs:
      return GraphsEdit{};
    case FixKind::host_work:
      return [](ReplayEvent& e, ReplayOp*) {
        if (e.host_ns + e.blocked_ns + e.no_core_ns > kOwnWorkNs)
          e.host_ns = e.blocked_ns = e.no_core_ns = 0;
      };
    case FixKind::syncs:
      return [](ReplayEvent& e, ReplayOp* ops) {
        const bool reads = is_waiting_copy(e) && e.ops > 0 &&
                           (ops->leaf == Leaf::copy_out || ops->leaf == Leaf::copy_out_pageable);
        if (e.kind == ReplayCall::sync || reads) drop_wait(e);
      };
    case FixKind::loader:
      return [](ReplayEvent& e, ReplayOp*) { e.loader_ns = 0; };
    case FixKind::copies:
      return CopiesEdit{};
    case FixKind::transfers:
      return TransfersEdit{};
    case FixKind::cores:
      return [](ReplayEvent& e, ReplayOp*) { e.no_core_ns = 0; };
    case FixKind::allocator:
      return [](ReplayEvent& e, ReplayOp*) {
        if (e.kind == ReplayCall::allocate) e.call_ns = 0;
      };
    case FixKind::code_load:
      return [](ReplayEvent& e, ReplayOp*) {
        if (e.kind == ReplayCall::load) e.call_ns = 0;
      };
    case FixKind::communication:
      return [](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i) {
          if (ops[i].leaf == Leaf::communication) ops[i].duration_ns = 0;
        }
      };
    case FixKind::precision:
      return [](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i) {
          if (ops[i].leaf == Leaf::matrix)
            ops[i].duration_ns =
                static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) / kTensorRatio);
        }
      };
    default:
      return {};
  }
}

// Of each run of neighbouring memory-bound kernels the longest stays: one pass over the memory.
// The launches of the others go as well. Two of the same name in a row work on different data.
class FusionEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    for (uint32_t i = 0; i < e.ops; ++i) {
      const bool fusible = ops[i].memory_kernel;
      if (!fusible) {
        longest_ = 0;
        last_name_ = kNone;
        continue;
      }
      // A longer one pays only what it is longer: the run then costs as much as its longest.
      const int64_t ns = ops[i].duration_ns;
      const bool first = longest_ == 0 || ops[i].name == last_name_;
      if (first) longest_ = 0;
      last_name_ = ops[i].name;
      ops[i].duration_ns = std::max<int64_t>(0, ns - longest_);
      longest_ = std::max(longest_, ns);
      if (!first && e.ops == 1) {
        e.call_ns = 0;
        if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      }
    }
  }

 private:
  int64_t longest_ = 0;
  uint32_t last_name_ = kNone;
};

// Twice the work: what fills the device takes twice as long, small kernels grow for free.
void double_batch(ReplayEvent& e, ReplayOp* ops) {
  e.loader_ns *= 2;
  if (e.arrival_ns >= 0) e.arrival_ns *= 2;
  for (uint32_t i = 0; i < e.ops; ++i) {
    const Leaf leaf = ops[i].leaf;
    if (leaf != Leaf::tiny && leaf != Leaf::low_grid && leaf != Leaf::communication)
      ops[i].duration_ns *= 2;
  }
}

// A copy to the device on a stream of its own: pinned, it goes at the speed of the bus.
int64_t pinned_copy_ns(const ReplayOp& op) {
  if (op.leaf == Leaf::copy_in) return op.duration_ns;
  if (op.leaf != Leaf::copy_in_pageable) return 0;
  return std::min(op.duration_ns, op.bytes / kBusBytesPerNs);
}

int64_t communication_ns(const ReplayOp& op) {
  return op.leaf == Leaf::communication ? op.duration_ns : 0;
}

// What one process needs of the device alone: kernels that fill it, with the gap behind each.
int64_t exclusive_ns(const ReplayOp& op) {
  constexpr int64_t kGapNs = 1'000;
  if (op.leaf == Leaf::tiny || op.leaf == Leaf::low_grid) return 0;
  return op.duration_ns + kGapNs;
}

// For processes: half the time that two of them need for a step each.
double step_with(const Replay& replay, FixKind kind, const ClockHold& clock) {
  if (kind == FixKind::fusion) return replay.run(FusionEdit{}).step_ns;
  if (kind == FixKind::clocks) return replay.run(faster_clock(clock.speed)).step_ns;
  if (kind == FixKind::processes) {
    const double alone = replay.run().step_ns;
    return std::clamp(replay.serial_ns(exclusive_ns), alone / 2, alone);
  }
  if (kind == FixKind::batch) return replay.run(double_batch).step_ns;
  const double step = replay.run(simple_edit(kind)).step_ns;
  // What moves beside the computation still takes its own time.
  if (kind == FixKind::copies) return std::max(step, replay.serial_ns(pinned_copy_ns));
  if (kind == FixKind::communication) return std::max(step, replay.serial_ns(communication_ns));
  return step;
}

// By gain. A larger batch changes the training and cures no cause: it comes last. Of nearly equal
// gains the one that the attribution bears out goes first: up to three tenths of the gain.
double rank_of(const Fix& f) {
  if (!f.cures && f.speedup >= kWorth) return f.kind == FixKind::processes ? 0.99 : 1;
  const double removed = 1 - 1 / f.speedup;
  const double borne_out = removed > 0 ? std::min(1.0, f.share / removed) : 0;
  return 1 + (f.speedup - 1) * (0.7 + 0.3 * borne_out);
}

// With the change of `first` applied as well.
double step_with_both(const Replay& replay, FixKind first, FixKind second, const ClockHold& clock) {
  if (is_throughput(first) || is_throughput(second)) return 0;
  FusionEdit fusion;
  const auto apply = [&](FixKind kind) -> Replay::Edit {
    if (kind == FixKind::fusion)
      return [&fusion](ReplayEvent& e, ReplayOp* ops) { fusion(e, ops); };
    return kind == FixKind::clocks ? faster_clock(clock.speed) : simple_edit(kind);
  };
  const Replay::Edit a = apply(first), b = apply(second);
  return replay
      .run([&](ReplayEvent& e, ReplayOp* ops) {
        a(e, ops);
        b(e, ops);
      })
      .step_ns;
}

}  // namespace

const FixInfo& fix_info(FixKind kind) { return kInfo[static_cast<size_t>(kind)]; }

FixReport find_fixes(Replay replay, const Analysis& analysis, double untraced_step_ns,
                     const ClockHold& clock) {
  FixReport report;
  if (!replay.usable()) {
    report.why_not = "too few operations with the calls that issued them";
    return report;
  }
  report.replay_error = replay.error();
  report.unexplained = replay.unexplained();
  report.whole_steps = replay.whole_steps();
  report.window_steps = replay.steps();
  // What waits for the device cost is mostly that the host cannot run ahead afterwards: only the
  // replay sees that. Of the capture as it was recorded, like the attribution.
  const double sync_cost = replay.run().step_ns - step_with(replay, FixKind::syncs, clock);
  report.step_given = untraced_step_ns > 0;
  if (report.step_given)
    report.dispatch = replay.scale_dispatch(untraced_step_ns,
                                            analysis.source == kKinetoSource ? kProfilerLeaves : 1);
  const double base = replay.run().step_ns;
  report.replay_step_ns = base;
  report.numbers = replay.error() <= kMaxReplayError && replay.unexplained() <= kMaxUnexplained;
  if (replay.unexplained() > kMaxUnexplained)
    report.why_not = fmt::format(
        "waits of issued work that nothing in the capture explains add up to {:.0f}% of the time",
        100 * replay.unexplained());
  if (replay.error() > kMaxReplayError)
    report.why_not = fmt::format(
        "replaying the unchanged capture misses its time by {:.1f}%, more than {:.0f}%: no number "
        "would be worth anything",
        100 * replay.error(), 100 * kMaxReplayError);

  std::vector<Fix> fixes;
  for (size_t k = 0; k < kInfo.size(); ++k) {
    Fix f;
    f.kind = static_cast<FixKind>(k);
    const double step = step_with(replay, f.kind, clock);
    f.speedup = f.kind == FixKind::batch ? 2 * base / step : base / std::max(step, 1.0);
    f.step_ns = is_throughput(f.kind) ? 0 : step;
    f.speedup = std::max(1.0, f.speedup);
    f.ceiling = f.kind != FixKind::allocator;
    const bool only_power = clock.power && !clock.heat && !clock.supply && !clock.settings;
    f.cures = !is_throughput(f.kind) && !(f.kind == FixKind::clocks && only_power);
    f.share = attributed_share(f.kind, analysis, clock);
    add_words(f, analysis, clock);
    if (f.kind == FixKind::syncs && report.numbers)
      f.share = std::max(0.0, sync_cost / replay.measured().step_ns);
    fixes.push_back(std::move(f));
  }
  std::stable_sort(fixes.begin(), fixes.end(),
                   [](const Fix& a, const Fix& b) { return rank_of(a) > rank_of(b); });
  for (Fix& f : fixes)
    (f.speedup >= (f.kind == FixKind::processes ? kWorthProcesses : kWorth) ? report.worth
                                                                            : report.not_worth)
        .push_back(std::move(f));
  for (size_t i = 1; i < report.worth.size(); ++i) {
    Fix& f = report.worth[i];
    const Fix& first = report.worth[0];
    const double both = step_with_both(replay, first.kind, f.kind, clock);
    if (both <= 0 || first.step_ns <= 0 || f.step_ns <= 0 || base - f.step_ns <= 0) continue;
    f.shared = std::clamp(1 - (first.step_ns - both) / (base - f.step_ns), 0.0, 1.0);
  }
  return report;
}

}  // namespace saturate::observe
