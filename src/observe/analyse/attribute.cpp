// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/attribute.h"

#include <algorithm>
#include <array>
#include <queue>
#include <vector>

#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

Leaf kernel_leaf(KernelClass kind, const DeviceOp& op, int64_t multiprocessors) {
  if (kind == KernelClass::communication) return Leaf::communication;
  if (op.end_ns - op.start_ns < kTinyKernelNs) return Leaf::tiny;
  // Persistent kernels leave out multiprocessors that their clusters cannot use: not a small grid.
  if (op.size > 0 && 4 * op.size < 3 * multiprocessors) return Leaf::low_grid;
  switch (kind) {
    case KernelClass::tensor:
      return Leaf::tensor;
    case KernelClass::matrix:
      return Leaf::matrix;
    case KernelClass::memory:
      return Leaf::memory_bound;
    default:
      return Leaf::other_kernel;
  }
}

bool may_be_for_data(Leaf leaf) {
  return leaf == Leaf::blocked || leaf == Leaf::file_read || leaf == Leaf::network;
}

Leaf copy_leaf(const DeviceOp& op) {
  const bool pageable = op.memory == HostMemory::pageable;
  switch (op.copy) {
    case CopyKind::host_to_device:
      return pageable ? Leaf::copy_in_pageable : Leaf::copy_in;
    case CopyKind::device_to_host:
      return pageable ? Leaf::copy_out_pageable : Leaf::copy_out;
    default:
      return Leaf::copy_device;
  }
}

class Sweep {
 public:
  Sweep(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from, int64_t to,
        const std::function<void(const Segment&)>& take)
      : trace_(trace), host_(host), leaves_(trace), from_(from), to_(to), take_(take) {
    if (const auto at = trace.devices.find(device); at != trace.devices.end())
      multiprocessors_ = at->second.multiprocessors;
    on_device_.resize(trace.streams.size());
    for (uint32_t s = 0; s < trace.streams.size(); ++s)
      on_device_[s] = trace.streams[s].device == device;
  }

  void run() {
    now_ = from_;
    for (uint32_t i = 0; i < trace_.ops.size(); ++i) {
      const DeviceOp& op = trace_.ops[i];
      if (!on_device_[op.stream] || op.end_ns < from_) continue;
      advance_busy(std::min(op.start_ns, to_));
      if (op.start_ns > now_) fill_gap(std::min(op.start_ns, to_), i);
      if (op.start_ns >= to_) break;
      open(op, i);
    }
    advance_busy(to_);
    if (now_ < to_) fill_gap(to_, kNone);
    flush();
  }

 private:
  struct Open {
    int64_t end_ns;
    Leaf leaf;
    uint32_t op;
    int64_t low_blocks;
    bool operator>(const Open& other) const { return end_ns > other.end_ns; }
  };

  void open(const DeviceOp& op, uint32_t index) {
    const Leaf leaf = leaves_.of(op, multiprocessors_);
    const auto l = static_cast<size_t>(leaf);
    if (open_count_[l]++ == 0) first_open_[l] = index;
    const int64_t low_blocks = leaf == Leaf::low_grid ? op.size : 0;
    low_blocks_ += low_blocks;
    open_.push({op.end_ns, leaf, index, low_blocks});
  }

  // Emits busy time up to `until` or to where the device runs dry.
  void advance_busy(int64_t until) {
    while (!open_.empty() && now_ < until) {
      const int64_t end = std::min(open_.top().end_ns, until);
      if (end > now_) {
        size_t l = 0;
        while (open_count_[l] == 0) ++l;
        const uint32_t op = first_open_[l];
        Segment busy{now_, end, static_cast<Leaf>(l), op, trace_.ops[op].name, kNone};
        if (busy.leaf == Leaf::low_grid) {
          if (4 * low_blocks_ >= 3 * multiprocessors_)
            busy.leaf = kernel_leaf(leaves_.kind(busy.name), trace_.ops[op], 0);
          else
            busy.filled = static_cast<double>(low_blocks_) / static_cast<double>(multiprocessors_);
        }
        emit(busy);
        now_ = end;
      }
      close_ended();
    }
    close_ended();
  }

  void close_ended() {
    while (!open_.empty() && open_.top().end_ns <= now_) {
      const Open ended = open_.top();
      open_.pop();
      low_blocks_ -= ended.low_blocks;
      const auto l = static_cast<size_t>(ended.leaf);
      if (--open_count_[l] > 0 && first_open_[l] == ended.op) {
        // Another of the same leaf goes on: charge the one that ends first from now on.
        first_open_[l] = next_of(ended.leaf);
      }
    }
  }

  // Rare: several operations of one leaf at once.
  uint32_t next_of(Leaf leaf) {
    auto copy = open_;
    while (!copy.empty()) {
      if (copy.top().leaf == leaf) return copy.top().op;
      copy.pop();
    }
    return kNone;
  }

  // The device is dry from now_ to `until`, where operation `next` starts (kNone: none does).
  void fill_gap(int64_t until, uint32_t next) {
    const uint32_t issuer = next == kNone ? kNone : host_.issuer(trace_.ops[next]);
    if (issuer == kNone) {
      emit({now_, until, Leaf::unknown, next, 0, kNone});
      now_ = until;
      return;
    }
    const HostCall& call = trace_.calls[issuer];
    walk_thread(call.thread, std::min(until, std::max(now_, call.end_ns)), next, issuer);
    if (now_ < until) {
      const int64_t started = std::min(until, now_ + kLaunchLatencyNs);
      emit({now_, started, Leaf::launch_latency, next, call.name, issuer});
      if (started < until) emit({started, until, Leaf::dependency, next, call.name, issuer});
      now_ = until;
    }
  }

  void walk_thread(uint32_t thread, int64_t until, uint32_t next, uint32_t issuer) {
    const auto pieces = host_.thread(thread);
    size_t p = host_.first_after(thread, now_);
    const bool copies_in =
        trace_.ops[next].kind == OpKind::copy && trace_.ops[next].copy == CopyKind::host_to_device;
    int64_t slept = 0;
    for (size_t i = p; copies_in && i < pieces.size() && pieces[i].start_ns < until; ++i)
      if (may_be_for_data(pieces[i].leaf))
        slept += std::min(until, pieces[i].end_ns) - std::max(now_, pieces[i].start_ns);
    // A short sleep in long work of the thread's own is not what the copy waits for.
    const bool sleeps = 3 * slept >= until - now_;
    // A wait that was on when the device ran dry kept the host from running ahead.
    const bool waited = p < pieces.size() && pieces[p].start_ns <= now_ &&
                        (pieces[p].leaf == Leaf::sync || pieces[p].leaf == Leaf::blocking_copy);
    const Leaf own_code = waited ? Leaf::after_sync : Leaf::host_code;
    for (; now_ < until; ++p) {
      const int64_t start = p < pieces.size() ? std::min(pieces[p].start_ns, until) : until;
      if (start > now_) emit({now_, start, own_code, next, 0, issuer});
      now_ = std::max(now_, start);
      if (now_ >= until) return;
      const int64_t end = std::min(pieces[p].end_ns, until);
      Leaf leaf = pieces[p].leaf;
      if (copies_in && may_be_for_data(leaf) && (sleeps || leaf != Leaf::blocked))
        leaf = Leaf::loader;
      emit({now_, end, leaf, next, pieces[p].name, issuer});
      now_ = end;
    }
  }

  // Joins neighbours that differ in nothing but time.
  void emit(const Segment& s) {
    if (s.end_ns <= s.start_ns) return;
    if (pending_.end_ns == s.start_ns && pending_.leaf == s.leaf && pending_.op == s.op &&
        pending_.name == s.name && pending_.filled == s.filled) {
      pending_.end_ns = s.end_ns;
      return;
    }
    flush();
    pending_ = s;
  }
  void flush() {
    if (pending_.end_ns > pending_.start_ns) take_(pending_);
    pending_ = {0, 0, Leaf::unknown, kNone, 0, kNone};
  }

  const Trace& trace_;
  const HostTimeline& host_;
  BusyLeaves leaves_;
  const int64_t from_, to_;
  const std::function<void(const Segment&)>& take_;
  int64_t multiprocessors_ = 0, now_ = 0;
  int64_t low_blocks_ = 0;  // of the low-grid kernels that run
  std::vector<bool> on_device_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
  std::array<int64_t, kBusyLeaves> open_count_{};
  std::array<uint32_t, kBusyLeaves> first_open_{};
  Segment pending_{0, 0, Leaf::unknown, kNone, 0, kNone};
};

}  // namespace

KernelClass BusyLeaves::kind(uint32_t name) {
  uint8_t& kind = kinds_[name];
  if (kind == kUnread) kind = static_cast<uint8_t>(classify_kernel(trace_.names[name]));
  return static_cast<KernelClass>(kind);
}

Leaf BusyLeaves::of(const DeviceOp& op, int64_t multiprocessors) {
  switch (op.kind) {
    case OpKind::copy:
      return copy_leaf(op);
    case OpKind::fill:
      return Leaf::fill;
    case OpKind::graph:
      return op.end_ns - op.start_ns < kTinyKernelNs ? Leaf::tiny : Leaf::graph;
    case OpKind::kernel:
      break;
  }
  return kernel_leaf(kind(op.name), op, multiprocessors);
}

bool is_serial(std::string_view kernel, int64_t blocks, int64_t ns, int64_t multiprocessors) {
  constexpr int64_t kLongNs = 200'000;
  if (blocks <= 0 || ns < kLongNs || 8 * blocks > multiprocessors || is_recurrent(kernel))
    return false;
  const KernelClass kind = classify_kernel(kernel);
  return kind == KernelClass::memory || kind == KernelClass::other;
}

void attribute(const Trace& trace, const HostTimeline& host, uint32_t device, int64_t from_ns,
               int64_t to_ns, const std::function<void(const Segment&)>& take) {
  Sweep(trace, host, device, from_ns, to_ns, take).run();
}

}  // namespace saturate::observe
