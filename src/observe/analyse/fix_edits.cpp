// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fix_edits.h"

#include <algorithm>
#include <map>
#include <vector>

#include "observe/analyse/attribute.h"
#include "observe/analyse/roofline.h"

namespace saturate::observe {
namespace {

// Shorter stretches of host code between two calls are never the program's own work.
constexpr int64_t kOwnWorkNs = 100'000;
constexpr int64_t kGraphLaunchNs = 8'000;  // of the host, for a graph of some ten nodes
// Products with inputs of 16 bits against TF32: kHalfOfTf32 at most; half of that gain where neither
// rate nor bytes are all of the limit.
constexpr double kSurelyOfTf32 = 1.5;
constexpr int64_t kReadNs = 5'000;  // of host code that belongs to reading one value

bool is_waiting_copy(const ReplayEvent& e) { return e.kind == ReplayCall::blocking_copy; }

bool is_in(const ReplayOp& op) {
  return op.leaf == Leaf::copy_in || op.leaf == Leaf::copy_in_pageable;
}
bool is_out(const ReplayOp& op) {
  return op.leaf == Leaf::copy_out || op.leaf == Leaf::copy_out_pageable;
}
void drop_wait(ReplayEvent& e) {
  e.waits_for = kNone;
  e.call_ns = std::min<int64_t>(e.call_ns, 2'000);
}

void remove_ops(const ReplayEvent& e, ReplayOp* ops) {
  for (uint32_t i = 0; i < e.ops; ++i) {
    ops[i].duration_ns = ops[i].extra_ns = 0;
    ops[i].after = kNone;
    ops[i].from_call_start = false;
  }
}

// Kernels that `which` takes go, with their launches and the dispatch before them.
template <class Which>
void drop_kernels(ReplayEvent& e, ReplayOp* ops, Which which) {
  for (uint32_t i = 0; i < e.ops; ++i) {
    if (!which(ops[i])) continue;
    ops[i].duration_ns = 0;
    ops[i].back_to_back = true;
    if (e.ops > 1) continue;
    e.call_ns = 0;
    if (e.host_ns <= kDispatchNs) e.host_ns = 0;
  }
}

// The host at the pace of its fastest tenth. On crowded cores at twice that, for two threads of a
// core share its units, and caches and memory have their limits too.
void relieve(ReplayEvent& e, bool crowded) {
  const int64_t part = crowded ? 2 : 1;
  e.host_ns = std::min(e.host_ns, e.least_host_ns) / part;
  e.call_ns = std::min(e.call_ns, e.least_call_ns) / part;
  e.no_core_ns = 0;
  if (crowded && e.blocked_ns <= kDispatchNs) e.blocked_ns = 0;
}

// What finds room beside as much again: surely what leaves half of the multiprocessors empty, at most
// every small kernel.
bool finds_room(const ReplayOp& op, bool at_most) {
  return (op.has_room || at_most) && (op.leaf == Leaf::tiny || op.leaf == Leaf::low_grid);
}

// Kernels follow each other without a gap and without a launch each; what is a graph already keeps
// its launch and the gap before it. A wait for the device cannot be captured: after each one
// another graph has to be launched.
class GraphsEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    const bool graph = e.ops > 1 || (e.ops == 1 && ops->leaf == Leaf::graph);
    for (uint32_t i = graph ? 1 : 0; i < e.ops; ++i) ops[i].back_to_back = true;
    const bool dispatch = waits_ns(e) <= kDispatchNs && !e.prepares;  // one thread wakes another
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

// Of each run of short kernels, those that are no products become one, as long as the longest, and
// products of one name become one, as long as the longest of these: what a remedy makes of them that
// writes them anew, beyond issuing them at once. At most, for a batch of products has more work. Short
// fills go along. Short graphs, one after the other, are steps of a loop, of which kUnrolled become one.
class TinyEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    constexpr int64_t kUnrolled = 32;
    for (uint32_t i = 0; i < e.ops; ++i) {
      if (ops[i].leaf == Leaf::fill && ops[i].duration_ns < kTinyKernelNs && !longest_.empty()) {
        ops[i].duration_ns = 0;
        ops[i].back_to_back = true;
        continue;
      }
      if (ops[i].leaf == Leaf::tiny && ops[i].graph) {
        ops[i].duration_ns /= kUnrolled;
        continue;
      }
      // Each needs what the one before gave, and so do the products between.
      if (ops[i].recurrent) {
        longest_.clear();
        continue;
      }
      if (ops[i].leaf != Leaf::tiny) {
        if (ops[i].blocks > 0 || is_in(ops[i]) || is_out(ops[i]) || ops[i].graph) longest_.clear();
        continue;
      }
      int64_t& longest = longest_[ops[i].product ? ops[i].name : kNone];
      const int64_t ns = ops[i].duration_ns;
      ops[i].duration_ns = std::max<int64_t>(0, ns - longest);
      if (longest > 0) ops[i].back_to_back = true;
      longest = std::max(longest, ns);
    }
    if (e.waits_for != kNone) longest_.clear();
  }

 private:
  std::map<uint32_t, int64_t> longest_;  // of the run; of products by name
};

// Operations that only repeat the same few go, with all that the host does for them: as if what is
// computed for one after the other were computed for all at once, and took no longer.
class LoopEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool all = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i) all = all && ops[i].loops;
    if (e.ops > 0) inside_ = all;
    if (!inside_) return;
    e.host_ns = e.blocked_ns = e.no_core_ns = e.loader_ns = 0;
    remove_ops(e, ops);
    drop_wait(e);
    e.call_ns = 0;
  }

 private:
  bool inside_ = false;
};

// One batch in place of several: the host does for the later ones nothing but get their data. Their kernels take as
// long as now, at most small ones find room beside the first one's.
class MicroBatchesEdit {
 public:
  explicit MicroBatchesEdit(bool at_most) : at_most_(at_most) {}
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool all = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i) all = all && ops[i].later_part;
    if (e.ops > 0) inside_ = all;
    if (!inside_) return;
    e.host_ns = e.blocked_ns = e.no_core_ns = 0;
    if (e.kind != ReplayCall::load) e.call_ns = 0;
    if (e.waits_for != kNone) drop_wait(e);
    for (uint32_t i = 0; i < e.ops; ++i) {
      ops[i].back_to_back = true;
      ops[i].from_call_start = false;
      if (finds_room(ops[i], at_most_)) ops[i].duration_ns = 0;
    }
  }

 private:
  bool at_most_, inside_ = false;
};

// Copies to the device, and large ones from it, take no time of their own: serial_ns adds what the
// bus needs. A wait for a copy goes with it. Of a run of small copies without a kernel between them
// one call stays: they travel as one block.
class CopiesEdit {
 public:
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool moves = e.ops > 0, small = e.ops > 0, in = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i) {
      in = in && is_in(ops[i]);
      moves = moves && (is_in(ops[i]) || is_bulk_out(ops[i]));
      small = small && ops[i].bytes < kSmallCopy;
      if (!is_in(ops[i]) && !is_bulk_out(ops[i])) continue;
      ops[i].duration_ns = 0;
      ops[i].from_call_start = false;
    }
    // Pinned once, before the loop; or what stays on the device is not copied there again.
    if (e.pins || (is_waiting_copy(e) && e.ops == 0)) e.call_ns = 0;
    const bool waits_for_copy = e.waits_for != kNone && e.waits_for >= first_ && e.waits_for < end_;
    if (moves && is_waiting_copy(e)) drop_wait(e);
    if (e.kind == ReplayCall::sync && waits_for_copy) drop_wait(e);
    if (run_ && ((in && small) || e.ops == 0)) {
      if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      if (in || e.kind == ReplayCall::sync || e.kind == ReplayCall::other) e.call_ns = 0;
    }
    if (moves) {
      first_ = e.first_op;
      end_ = e.first_op + e.ops;
    }
    if (e.ops > 0) run_ = in && small;
  }

 private:
  uint32_t first_ = 0, end_ = 0;  // operations of the last copy
  bool run_ = false;
};

// Of a run of small copies to the device without a kernel between them the first call stays; the
// others take only what the bus needs for their bytes.
class TransfersEdit {
 public:
  explicit TransfersEdit(double bytes_per_ns) : bytes_per_ns_(bytes_per_ns) {}
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    bool small = e.ops > 0;
    for (uint32_t i = 0; i < e.ops; ++i)
      small = small && is_in(ops[i]) && ops[i].bytes < kSmallCopy;
    if (run_ && (small || e.ops == 0)) {
      if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      if (small || e.kind == ReplayCall::sync || e.kind == ReplayCall::other) {
        e.call_ns = 0;
        e.waits_for = kNone;
      }
      for (uint32_t i = 0; i < e.ops; ++i) {
        const auto bus = static_cast<int64_t>(static_cast<double>(ops[i].bytes) / bytes_per_ns_);
        ops[i].duration_ns = std::min(ops[i].duration_ns, bus);
        ops[i].from_call_start = false;
        ops[i].back_to_back = true;
      }
    }
    if (e.ops > 0) run_ = small;
  }

 private:
  double bytes_per_ns_;
  bool run_ = false;
};

// Of each run of neighbouring kernels that work element by element, at most of all that are bound by
// memory, one launch stays; likely, also one pass over the memory, the longest. Surely they move the
// bytes that they do now, copies within the device too: what the backward pass reads has to be written. Two of the same name in a
// row work on different data, but for the parts of an operation on 2^28 elements or more, which are
// indexed by 32 bits. So do, likely, runs that repeat: one launch, but as many passes. Tiny ones take their
// time to start, not for memory.
class FusionEdit {
 public:
  explicit FusionEdit(Assume assume) : assume_(assume) {}
  void operator()(ReplayEvent& e, ReplayOp* ops) {
    for (uint32_t i = 0; i < e.ops; ++i) {
      const bool moves = ops[i].moves_within && assume_ != Assume::surely;
      if (!moves && !(assume_ >= Assume::at_most ? ops[i].memory_kernel : ops[i].pointwise)) {
        longest_ = 0;
        last_name_ = kNone;
        in_parts_ = false;
        continue;
      }
      // A longer one pays only what it is longer: the run then costs as much as its longest.
      const int64_t ns = ops[i].duration_ns;
      in_parts_ = in_parts_ || ops[i].blocks >= kLeastOfParts;
      // Of formulas on arrays those of one name are parts too, where all of a formula becomes one kernel.
      const bool again = ops[i].name == last_name_,
                 part = again && (in_parts_ || assume_ == Assume::ahead);
      const bool first = longest_ == 0 || (again && !part);
      const bool other_data =
          assume_ == Assume::likely && ops[i].repeats && ops[i].leaf != Leaf::tiny;
      if (first || other_data) longest_ = 0;
      last_name_ = ops[i].name;
      all_parts_ = ns + (part && in_parts_ ? all_parts_ : 0);
      if (assume_ != Assume::surely)
        ops[i].duration_ns = std::min(ns, std::max<int64_t>(0, all_parts_ - longest_));
      // What is written anew goes through memory in order and in 16 bits, where that may be.
      if (assume_ >= Assume::at_most) ops[i].duration_ns = ops[i].duration_ns * 3 / 5;
      longest_ = std::max(longest_, all_parts_);
      if (!first && e.ops == 1) {
        ops[i].back_to_back = true;
        e.call_ns = 0;
        if (e.host_ns <= kDispatchNs) e.host_ns = 0;
      }
    }
  }

 private:
  static constexpr int64_t kLeastOfParts = int64_t{1} << 19;  // blocks, of 512 elements each
  Assume assume_;
  int64_t longest_ = 0, all_parts_ = 0;  // of a run; of the operation whose parts come
  uint32_t last_name_ = kNone;
  bool in_parts_ = false;  // the run has an operation that comes in parts
};

// A wait goes; with it, at most, what reads the value: its copy, its calls and their host code. What
// carries data away for the host to work on is no value that need not be read.
// `checks`: also the kernels that bring the value forth.
void drop_reads(ReplayEvent& e, ReplayOp* ops, bool at_most, bool checks) {
  if (checks && e.ops == 1 && ops->for_read) remove_ops(e, ops);
  const bool reads = e.ops > 0 && is_out(*ops) && !is_bulk_out(*ops);
  if (e.feeds_host) return;
  if (e.kind != ReplayCall::sync && !(reads && (is_waiting_copy(e) || at_most))) return;
  drop_wait(e);
  if (!at_most) return;
  e.call_ns = 0;
  e.host_ns = std::max<int64_t>(0, e.host_ns - kReadNs);
  if (reads) remove_ops(e, ops);
}

// Stretches that are the program's own work go; with them, at most, the copies that bring them
// their data, and whatever they keep the rest of the host from.
void drop_host_work(ReplayEvent& e, ReplayOp* ops, bool at_most, bool crowded) {
  if (is_own_work(e)) e.host_ns = e.blocked_ns = e.no_core_ns = 0;
  if (!at_most || e.compiles) return;
  relieve(e, crowded);
  if (!e.feeds_host) return;
  remove_ops(e, ops);
  drop_wait(e);
  e.call_ns = 0;
}

// Batches that are there in time: neither waiting for them nor making them holds up the thread that
// issues, and their copies go beside the computation.
void have_data_ready(ReplayEvent& e, ReplayOp* ops, bool at_most, bool crowded) {
  e.loader_ns = 0;
  if (at_most) relieve(e, crowded);
  if (!e.prepares) return;
  e.host_ns = e.blocked_ns = e.no_core_ns = 0;
  for (uint32_t i = 0; i < e.ops; ++i) {
    ops[i].duration_ns = 0;
    ops[i].from_call_start = false;
  }
  if (is_waiting_copy(e)) drop_wait(e);
}

// A host that nothing holds up but waits for the device, for data, memory and code.
void keep_ahead(ReplayEvent& e, ReplayOp* ops) {
  if (e.compiles) return;
  e.host_ns = e.blocked_ns = e.no_core_ns = 0;
  if (e.kind != ReplayCall::allocate && e.kind != ReplayCall::load) e.call_ns = 0;
  bool in = e.ops > 0;
  for (uint32_t i = 0; i < e.ops; ++i) {
    in = in && is_in(ops[i]);
    if (!is_in(ops[i])) continue;
    ops[i].duration_ns = 0;
    ops[i].from_call_start = false;
  }
  if (in && is_waiting_copy(e)) e.waits_for = kNone;
}

// Products go through tensor cores, but for those of float64, which no switch changes; at most with inputs of 16 bits, and what memory bounds between
// them moves half of the bytes, in the order of memory that the products want.
void halve(ReplayEvent& e, ReplayOp* ops, bool at_most, const EditSettings& s) {
  for (uint32_t i = 0; i < e.ops; ++i) {
    double factor = 1;
    if (ops[i].doubles)
      factor = 1;
    else if (ops[i].tf32)
      factor = 1 / (at_most ? kHalfOfTf32 : kSurelyOfTf32);
    else if (ops[i].float32_attention && !s.half_products)  // else product_types promises it
      factor = 1 / (at_most ? s.attention_at_most : s.attention_surely);
    else if (ops[i].leaf == Leaf::matrix)
      factor = 1 / (at_most ? s.half_ratio : s.tensor_ratio);
    else if (at_most && ops[i].layout)
      factor = 0;
    else if (at_most && ops[i].memory_kernel)
      factor = 0.5;
    ops[i].duration_ns = static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) * factor);
  }
}

// Of float64 to float32: half of the bytes, and products on tensor cores in TF32, surely at half of the
// rate that these have; at most also graphs that may hold such products. A kernel that only its code
// tells may be bound by arithmetic: exponentials and the like take fewer instructions in float32, too.
void narrow(ReplayEvent& e, ReplayOp* ops, bool at_most, const EditSettings& s) {
  const double products = std::max(2.0, at_most ? s.double_ratio : s.double_ratio / 2);
  for (uint32_t i = 0; i < e.ops; ++i)
    if (ops[i].doubles || (at_most && ops[i].may_double))
      ops[i].duration_ns = static_cast<int64_t>(
          static_cast<double>(ops[i].duration_ns) /
          (ops[i].product || ops[i].may_double || (at_most && ops[i].double_code) ? products : 2));
}

// Attention gets what the products beside it get; whole numbers go through a library's product of
// fp32, at most through tensor cores.
void change_types(ReplayEvent& e, ReplayOp* ops, bool at_most, const EditSettings& s) {
  for (uint32_t i = 0; i < e.ops; ++i) {
    double ratio = 1;
    if (ops[i].integer_product) ratio = at_most ? s.tensor_ratio : s.integer_ratio;
    if (ops[i].float32_attention && s.half_products)
      ratio = at_most ? s.attention_at_most : s.attention_surely;
    ops[i].duration_ns = static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) / ratio);
  }
}

// Of operations that `which` takes, their durations times `factor`.
template <class Which>
Replay::Edit scaled(Which which, double factor) {
  return [which, factor](ReplayEvent& e, ReplayOp* ops) {
    for (uint32_t i = 0; i < e.ops; ++i)
      if (which(ops[i].leaf))
        ops[i].duration_ns = static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) * factor);
  };
}

// Twice the work takes twice as long, but where it finds room.
void double_batch(ReplayEvent& e, ReplayOp* ops, bool at_most) {
  e.loader_ns *= 2;
  if (e.arrival_ns >= 0) e.arrival_ns *= 2;
  for (uint32_t i = 0; i < e.ops; ++i) {
    if (ops[i].leaf != Leaf::communication && !finds_room(ops[i], at_most)) ops[i].duration_ns *= 2;
  }
}

Replay::Edit edit_of(FixKind kind, Assume assume, const EditSettings& s) {
  const bool crowded = s.crowded, at_most = assume >= Assume::at_most,
             checks = assume == Assume::ahead;
  switch (kind) {
    case FixKind::graphs:
      if (assume != Assume::likely && assume != Assume::ahead) return GraphsEdit{};
      return [graphs = GraphsEdit{}, tiny = TinyEdit{}, loop = LoopEdit{}](ReplayEvent& e,
                                                                           ReplayOp* ops) mutable {
        loop(e, ops);
        tiny(e, ops);
        graphs(e, ops);
      };
    case FixKind::host_work:
      return [=](ReplayEvent& e, ReplayOp* ops) { drop_host_work(e, ops, at_most, crowded); };
    case FixKind::syncs:
      return [=](ReplayEvent& e, ReplayOp* ops) { drop_reads(e, ops, at_most, checks); };
    case FixKind::loader:
      return [=](ReplayEvent& e, ReplayOp* ops) { have_data_ready(e, ops, at_most, crowded); };
    case FixKind::copies:
    case FixKind::fewer_bytes:
      return CopiesEdit{};
    case FixKind::transfers:
      return TransfersEdit{s.in_bytes_per_ns};
    case FixKind::cores:
      return [=](ReplayEvent& e, ReplayOp*) {
        e.no_core_ns = 0;
        if (at_most) relieve(e, crowded);
      };
    case FixKind::allocator:
      return [=](ReplayEvent& e, ReplayOp*) {
        if (e.kind == ReplayCall::allocate && !e.pins) e.call_ns = 0;
        if (at_most && e.with_release) drop_wait(e);
      };
    case FixKind::code_load:
      return [](ReplayEvent& e, ReplayOp* ops) {
        if (e.kind == ReplayCall::load) e.call_ns = 0;
        if (!e.compiles) return;
        e.host_ns = e.blocked_ns = e.no_core_ns = 0;
        if (!e.tries) return;  // what it tries on the device goes with it
        e.call_ns = 0;
        remove_ops(e, ops);
        drop_wait(e);
      };
    case FixKind::recompute:
      return [](ReplayEvent& e, ReplayOp* ops) {
        drop_kernels(e, ops, [](const ReplayOp& op) { return op.recomputed; });
      };
    case FixKind::weight_casts:
      return [at_most](ReplayEvent& e, ReplayOp* ops) {
        drop_kernels(e, ops, [at_most](const ReplayOp& op) {
          return op.of_weight || (at_most && op.of_operand);
        });
      };
    case FixKind::product_types:
      return [=](ReplayEvent& e, ReplayOp* ops) { change_types(e, ops, at_most, s); };
    case FixKind::device_copies:
      return [](ReplayEvent& e, ReplayOp* ops) {
        drop_kernels(e, ops, [](const ReplayOp& op) { return op.of_update; });
      };
    case FixKind::kernel_copies:
      return [at_most](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; at_most && i < e.ops; ++i)
          if (ops[i].reads_copies) ops[i].duration_ns /= kMostRepeats;
        drop_kernels(e, ops, [](const ReplayOp& op) { return op.copies; });
      };
    case FixKind::one_attention:
      return [at_most, ratio = s.written_ratio](ReplayEvent& e, ReplayOp* ops) {
        drop_kernels(e, ops, [](const ReplayOp& op) { return op.of_weights; });
        for (uint32_t i = 0; at_most && i < e.ops; ++i)
          if (ops[i].of_attention)
            ops[i].duration_ns =
                static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) / ratio);
      };
    case FixKind::float64:
      return [=](ReplayEvent& e, ReplayOp* ops) { narrow(e, ops, at_most, s); };
    case FixKind::transforms:
      return [at_most](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].detour) ops[i].duration_ns = at_most ? 0 : ops[i].duration_ns / 2;
      };
    case FixKind::sorts:
      return [at_most](ReplayEvent& e, ReplayOp* ops) {
        if (at_most) return drop_kernels(e, ops, [](const ReplayOp& op) { return op.sorts; });
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].sorts) ops[i].duration_ns /= 2;
      };
    case FixKind::slow_kernels:
      return [at_most](ReplayEvent& e, ReplayOp* ops) {
        if (at_most) return drop_kernels(e, ops, [](const ReplayOp& op) { return op.slow; });
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].slow) ops[i].duration_ns /= 2;
      };
    case FixKind::communication:
      return scaled([](Leaf leaf) { return leaf == Leaf::communication; }, 0);
    case FixKind::precision:
      return [ratio = s.tensor_ratio](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].leaf == Leaf::matrix && !ops[i].doubles && !ops[i].half_product)
            ops[i].duration_ns =
                static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) / ratio);
      };
    case FixKind::mixed:
      return [=](ReplayEvent& e, ReplayOp* ops) { halve(e, ops, at_most, s); };
    case FixKind::layout:
      return [](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].layout) ops[i].duration_ns = 0;
      };
    case FixKind::attention:
      return [ratio = at_most ? s.causal_ratio : s.mask_ratio](ReplayEvent& e, ReplayOp* ops) {
        for (uint32_t i = 0; i < e.ops; ++i)
          if (ops[i].reads_mask)
            ops[i].duration_ns =
                static_cast<int64_t>(static_cast<double>(ops[i].duration_ns) / ratio);
      };
    case FixKind::clocks:
      return scaled(follows_clock, s.clock_speed);
    case FixKind::fusion:
      return FusionEdit{assume};
    case FixKind::micro_batches:
      return MicroBatchesEdit{at_most};
    case FixKind::batch:
      return [=](ReplayEvent& e, ReplayOp* ops) { double_batch(e, ops, at_most); };
    case FixKind::growth:  // by the steps' times, not by replay
    case FixKind::processes:
      return {};
  }
  return {};
}

// Pictures as bytes in place of float32: the largest part of a copy that another type saves.
constexpr int64_t kFewestBytes = 4;

// A copy on a stream of its own: pinned, it goes at the speed of the bus.
int64_t pinned_copy_ns(const ReplayOp& op, bool in, double bytes_per_ns) {
  if (in ? !is_in(op) : !is_bulk_out(op)) return 0;
  const bool pinned = op.leaf == Leaf::copy_in || op.leaf == Leaf::copy_out;
  const auto bus = static_cast<int64_t>(static_cast<double>(op.bytes) / bytes_per_ns);
  return pinned ? op.duration_ns : std::min(op.duration_ns, bus);
}

// What one process needs of the device alone: a kernel with the gap behind it. Small ones surely find
// room beside the other's small ones, at most beside all.
int64_t exclusive_ns(const ReplayOp& op, bool at_most) {
  constexpr int64_t kGapNs = 1'000;
  const int64_t ns = op.duration_ns + kGapNs;
  return !finds_room(op, at_most) ? ns : at_most ? 0 : ns / 2;
}

}  // namespace

bool is_bulk_out(const ReplayOp& op) { return is_out(op) && op.bytes >= kSmallCopy; }
bool follows_clock(Leaf leaf) {
  return leaf == Leaf::tensor || leaf == Leaf::matrix || leaf == Leaf::other_kernel ||
         leaf == Leaf::graph || leaf == Leaf::low_grid || leaf == Leaf::tiny;
}
int64_t waits_ns(const ReplayEvent& e) { return e.host_ns + e.blocked_ns + e.no_core_ns; }
bool is_own_work(const ReplayEvent& e) {
  return !e.compiles && (e.prepares || waits_ns(e) > kOwnWorkNs);
}

EditSettings edit_settings(std::string_view device_name, const CopyRates& rates) {
  // A link's rate before its packets' heads, which take 4% and more.
  constexpr double kOfLink = 0.96;
  constexpr double kMeasured = 1.03;  // from run to run
  EditSettings s;
  if (const DevicePeaks* peaks = device_peaks(device_name)) {
    s.in_bytes_per_ns = s.out_bytes_per_ns = kOfLink * peaks->link;
    if (peaks->fp32 > 0 && peaks->tf32 > 0)
      s.tensor_ratio = std::max(s.tensor_ratio, peaks->tf32 / peaks->fp32);
    if (peaks->fp32 > 0 && peaks->fp64 > 0)
      s.double_ratio = std::max(peaks->fp32, peaks->tf32) / peaks->fp64;
    if (peaks->fp32 > 0 && peaks->tensor16 > 0)
      s.half_ratio = std::max(s.half_ratio, peaks->tensor16 / peaks->fp32);
  }
  if (rates.pinned_in > 0) s.in_bytes_per_ns = kMeasured * rates.pinned_in;
  if (rates.pinned_out > 0) s.out_bytes_per_ns = kMeasured * rates.pinned_out;
  return s;
}

double step_with(const Replay& replay, std::span<const FixKind> kinds, Assume assume,
                 const EditSettings& settings) {
  std::vector<Replay::Edit> edits;
  double least = 0;  // of what moves beside the computation, and still takes its own time
  for (const FixKind kind : kinds) {
    if (kind == FixKind::processes) {
      const double alone = replay.run().step_ns;
      const double needs = replay.serial_ns(
          [=](const ReplayOp& op) { return exclusive_ns(op, assume >= Assume::at_most); });
      return std::clamp(needs, alone / 2, alone);
    }
    if (kind == FixKind::copies || kind == FixKind::loader || assume == Assume::ahead) {
      for (const bool in : {true, false})
        least = std::max(least, replay.serial_ns([&](const ReplayOp& op) {
          return pinned_copy_ns(op, in, in ? settings.in_bytes_per_ns : settings.out_bytes_per_ns);
        }));
    }
    if (kind == FixKind::fewer_bytes)
      least = std::max(least, replay.serial_ns([&](const ReplayOp& op) {
        return pinned_copy_ns(op, true, settings.in_bytes_per_ns) / kFewestBytes;
      }));
    if (kind == FixKind::communication)
      least = std::max(least, replay.serial_ns([](const ReplayOp& op) {
        return op.leaf == Leaf::communication ? op.duration_ns : 0;
      }));
    if (Replay::Edit edit = edit_of(kind, assume, settings)) edits.push_back(std::move(edit));
  }
  if (assume == Assume::ahead) edits.emplace_back(keep_ahead);
  const double step = replay
                          .run([&](ReplayEvent& e, ReplayOp* ops) {
                            for (const Replay::Edit& edit : edits) edit(e, ops);
                          })
                          .step_ns;
  return std::max(step, least);
}

}  // namespace saturate::observe
