// SPDX-License-Identifier: Apache-2.0
// A capture becomes events and operations; how they run again is in replay.cpp.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <unordered_map>

#include "observe/analyse/analysis.h"
#include "observe/analyse/attribute.h"
#include "observe/analyse/compile_times.h"
#include "observe/analyse/median.h"
#include "observe/analyse/names.h"
#include "observe/analyse/replay.h"
#include "observe/analyse/stack_kinds.h"

namespace saturate::observe {
namespace {

// Batches come at a pace of their own where waiting for them is as much of the time; else they are
// handed over when they are asked for.
constexpr double kPaced = 0.25;

ReplayCall kind_of(CallClass c) {
  switch (c) {
    case CallClass::launch:
      return ReplayCall::launch;
    case CallClass::copy:
      return ReplayCall::copy;
    case CallClass::sync:
      return ReplayCall::sync;
    case CallClass::allocate:
      return ReplayCall::allocate;
    case CallClass::load:
      return ReplayCall::load;
    case CallClass::other:
      return ReplayCall::other;
  }
  return ReplayCall::other;
}

}  // namespace

Replay::Replay(const Trace& trace, const HostTimeline& host, uint32_t device,
               const std::vector<int64_t>& begins, int64_t from_ns, int64_t to_ns,
               int64_t max_ops) {
  const auto op_at = [&](int64_t time) {
    return static_cast<size_t>(
        std::partition_point(trace.ops.begin(), trace.ops.end(),
                             [&](const DeviceOp& op) { return op.start_ns < time; }) -
        trace.ops.begin());
  };
  std::vector<int64_t> inside;
  for (const int64_t b : begins) {
    if (b >= from_ns && b <= to_ns) inside.push_back(b);
  }
  whole_steps_ = inside.size() >= 3;
  if (!whole_steps_) {  // stretches of equally many operations
    inside.clear();
    const size_t first = op_at(from_ns), end = op_at(to_ns);
    const size_t parts = std::min<size_t>(12, (end - first) / 2);
    for (size_t i = 0; i <= parts && parts > 0; ++i) {
      const size_t at = std::min(first + (end - first) * i / parts, end - 1);
      inside.push_back(trace.ops[at].start_ns);
    }
    inside.erase(std::unique(inside.begin(), inside.end()), inside.end());
    if (inside.size() < 3) return;
  }
  // Whole steps around the middle until the operations are too many.
  size_t low = inside.size() / 2, high = low;
  while (low > 0 || high + 1 < inside.size()) {
    const size_t next_low = low > 0 ? low - 1 : low,
                 next_high = std::min(high + 1, inside.size() - 1);
    if (static_cast<int64_t>(op_at(inside[next_high]) - op_at(inside[next_low])) > max_ops &&
        high > low + 1)
      break;
    low = next_low;
    high = next_high;
  }
  const size_t first_op = op_at(inside[low]), end_op = op_at(inside[high]) + 1;
  build(trace, host, device, first_op, end_op);
  if (ops_.empty()) return;
  std::vector<std::pair<int64_t, uint32_t>> by_start;  // operations are in order of issue
  for (uint32_t o = 0; o < ops_.size(); ++o) by_start.emplace_back(ops_[o].measured_start_ns, o);
  std::sort(by_start.begin(), by_start.end());
  for (size_t i = low; i <= high; ++i) {
    const auto at = std::lower_bound(by_start.begin(), by_start.end(), std::pair{inside[i], 0u});
    if (at == by_start.end() || at->first != inside[i]) continue;
    if (marks_.empty() || marks_.back() != at->second) marks_.push_back(at->second);
  }
  if (marks_.size() < 3) return;
  // Kernels alone do not show it: blocks of a network that are alike look so, too.
  const StackKinds kinds(trace);
  if (std::any_of(trace.samples.begin(), trace.samples.end(),
                  [&](const HostSample& s) { return kinds.computes_again(s.stack); }))
    find_recomputed();
  const int64_t first_ns = ops_[marks_.front()].measured_start_ns,
                last_ns = ops_[marks_.back()].measured_start_ns;
  if (std::none_of(trace.samples.begin(), trace.samples.end(), [&](const HostSample& s) {
        if (s.end_ns < first_ns || s.start_ns > last_ns) return false;
        return kinds.is_backward(s.stack) || kinds.is_update(s.stack);
      }))
    find_weight_casts();
  // Batches come at a pace of their own only where the program waits for them again and again.
  const auto waits = std::count_if(events_.begin(), events_.end(),
                                   [](const ReplayEvent& e) { return e.loader_ns > 0; });
  int64_t waited = 0;
  for (const ReplayEvent& e : events_) waited += e.loader_ns;
  const int64_t window =
      ops_[marks_.back()].measured_start_ns - ops_[marks_.front()].measured_start_ns;
  if (2 * waits < steps() || static_cast<double>(waited) < kPaced * static_cast<double>(window)) {
    for (ReplayEvent& e : events_) e.arrival_ns = -1;
  }
  measure_latencies();
  find_waits();
  std::vector<int64_t> starts;
  for (const ReplayOp& op : ops_) starts.push_back(op.measured_start_ns);
  measured_ = times_of(starts);
  if (!(measured_.step_ns > 0)) return;
  error_ = std::fabs(run().step_ns - measured_.step_ns) / measured_.step_ns;
  unexplained_ = unexplained_share();
}

// Events are the outermost calls of the threads that issue work, in order of time, as if one thread
// of each process made them all: a second thread of a training program (autograd's) works while the
// first waits.
void Replay::build(const Trace& trace, const HostTimeline& host, uint32_t device, size_t first_op,
                   size_t end_op) {
  struct Issued {
    uint32_t call, op;
  };
  std::vector<Issued> issued;
  std::vector<bool> issuing(trace.threads.size());
  int64_t first_call = INT64_MAX, last_call = INT64_MIN;
  for (size_t i = first_op; i < end_op; ++i) {
    const uint32_t call = host.issuer(trace.ops[i]);
    issued.push_back({call, static_cast<uint32_t>(i)});
    if (call == kNone) continue;
    issuing[trace.calls[call].thread] = true;
    first_call = std::min(first_call, trace.calls[call].start_ns);
    last_call = std::max(last_call, trace.calls[call].start_ns);
  }
  if (first_call == INT64_MAX) return;
  std::stable_sort(issued.begin(), issued.end(),
                   [](const Issued& a, const Issued& b) { return a.call < b.call; });

  streams_ = static_cast<uint32_t>(trace.streams.size());
  stream_free_ns_.assign(streams_, INT64_MIN / 4);
  for (size_t i = 0; i < first_op; ++i)
    stream_free_ns_[trace.ops[i].stream] =
        std::max(stream_free_ns_[trace.ops[i].stream], trace.ops[i].end_ns);

  int64_t multiprocessors = 0;
  if (const auto at = trace.devices.find(device); at != trace.devices.end())
    multiprocessors = at->second.multiprocessors;
  BusyLeaves leaves(trace);
  const CompileTimes compiling(trace);
  enum : uint32_t {
    kUnread = 0,
    kRead = 1,
    kMemory = 2,
    kPointwise = 4,
    kLayout = 8,
    kMask = 16,
    kOptimizer = 32,
    kProduct = 64,
    kTf32 = 128,
    kBackward = 256,
    kRounding = 512,
    kElements = 1024,
    kFloat32Attention = 2048,
    kHalf = 4096,
    kInteger = 8192,
    kUpdates = 16384,
    kCopies = 32768,
    kDetour = 65536,
    kDouble = 131072,
    kSoftmax = 262144,
    kBesideAttention = 524288,
    kSorts = 1048576,
    kGathers = 2097152,
    kSlow = 4194304,
    kRecurrent = 8388608,
    kDoubleCode = 16777216,
    kJoins = 33554432
  };
  std::vector<uint32_t> of_name(trace.names.size(), kUnread);
  const auto from =
      std::partition_point(trace.calls.begin(), trace.calls.end(),
                           [&](const HostCall& c) { return c.start_ns < first_call; });
  size_t next_issued = 0;
  std::map<uint32_t, uint32_t> processes;
  std::vector<int64_t> reaches;          // by process: latest end so far
  std::vector<uint64_t> keys, last_key;  // of events; by process, of the event before
  for (auto c = from; c != trace.calls.end() && c->start_ns <= last_call; ++c) {
    if (!issuing[c->thread]) continue;
    const auto index = static_cast<uint32_t>(c - trace.calls.begin());
    while (next_issued < issued.size() && issued[next_issued].call < index) ++next_issued;
    const bool issues = next_issued < issued.size() && issued[next_issued].call == index;
    const auto [process, fresh] = processes.try_emplace(trace.threads[c->thread].process,
                                                        static_cast<uint32_t>(processes.size()));
    if (fresh) {
      reaches.push_back(c->start_ns);
      process_start_ns_.push_back(c->start_ns);
      last_key.push_back(0);
    }
    int64_t& reach = reaches[process->second];
    if (!issues && c->end_ns <= reach) continue;  // inside another call
    ReplayEvent e;
    e.process = process->second;
    e.kind = trace.names[c->name] == kStagedCopy ? ReplayCall::blocking_copy
                                                 : kind_of(classify_call(trace.names[c->name]));
    e.pins = e.kind == ReplayCall::allocate && pins_memory(trace.names[c->name]);
    e.first_op = static_cast<uint32_t>(ops_.size());
    e.call_ns = std::max<int64_t>(0, c->end_ns - std::max(c->start_ns, reach));
    const uint32_t of = trace.threads[c->thread].process;
    e.tries = compiling.within(of, c->start_ns);
    e.compiles = e.tries || (c->start_ns > reach && compiling.at(of, reach, c->start_ns));
    if (c->start_ns > reach) {
      const auto pieces = host.thread(c->thread);
      for (size_t p = host.first_after(c->thread, reach);
           p < pieces.size() && pieces[p].start_ns < c->start_ns; ++p) {
        const int64_t ns =
            std::min(pieces[p].end_ns, c->start_ns) - std::max(pieces[p].start_ns, reach);
        if (pieces[p].leaf == Leaf::loader) {
          e.loader_ns += ns;
          if (trace.names[pieces[p].name].find("SingleProcess") == std::string::npos)
            e.arrival_ns = std::min(pieces[p].end_ns, c->start_ns) - process_start_ns_[e.process];
        }
        if (is_host_wait(pieces[p].leaf) || pieces[p].leaf == Leaf::gil ||
            pieces[p].leaf == Leaf::code_load)
          e.blocked_ns += ns;
        if (pieces[p].leaf == Leaf::runnable) e.no_core_ns += ns;
      }
      e.host_ns =
          std::max<int64_t>(0, c->start_ns - reach - e.loader_ns - e.blocked_ns - e.no_core_ns);
    }
    reach = std::max(reach, c->end_ns);
    for (; next_issued < issued.size() && issued[next_issued].call == index; ++next_issued) {
      const DeviceOp& op = trace.ops[issued[next_issued].op];
      ReplayOp r;
      r.stream = op.stream;
      r.name = op.name;
      r.device = trace.streams[op.stream].device;
      r.bytes = op.kind == OpKind::copy ? op.size : 0;
      r.moves_within = op.kind == OpKind::copy && op.copy == CopyKind::device_to_device;
      r.blocks = op.kind == OpKind::kernel ? op.size : 0;
      r.graph = op.kind == OpKind::graph;
      r.pageable = op.kind == OpKind::copy && op.memory == HostMemory::pageable;
      r.has_room = r.blocks > 0 && 2 * r.blocks <= multiprocessors;
      r.leaf = leaves.of(op, multiprocessors);
      uint32_t& known = of_name[op.name];
      if (known == kUnread) {
        const std::string& name = trace.names[op.name];
        known = kRead;
        if (op.kind == OpKind::kernel && leaves.kind(op.name) == KernelClass::memory &&
            name.find("multi_tensor") == std::string::npos) {
          known |= kMemory;
          if (is_pointwise(name)) known |= kPointwise;
          if (is_layout_change(name)) known |= kLayout;
        }
        if (op.kind == OpKind::kernel && can_read_mask(name)) known |= kMask;
        if (op.kind == OpKind::kernel && is_optimizer(name)) known |= kOptimizer;
        const KernelClass kernel = leaves.kind(op.name);
        if (kernel == KernelClass::tensor || kernel == KernelClass::matrix) known |= kProduct;
        if (kernel == KernelClass::tensor && is_tf32(name)) known |= kTf32;
        if (is_backward(name)) known |= kBackward;
        if (is_rounding(name)) known |= kRounding;
        if (shows_elements(name)) known |= kElements;
        if (op.kind == OpKind::kernel && is_float32_attention(name)) known |= kFloat32Attention;
        if ((known & kProduct) && is_16_bit_product(name)) known |= kHalf;
        if (op.kind == OpKind::kernel && is_integer_product(name)) known |= kInteger;
        if (op.kind == OpKind::kernel && is_partial_update(name)) known |= kUpdates;
        if (op.kind == OpKind::kernel && is_copy(name)) known |= kCopies;
        if ((known & kCopies) && is_concatenation(name)) known |= kJoins;
        if (op.kind == OpKind::kernel && is_detour_transform(name)) known |= kDetour;
        if (op.kind == OpKind::kernel && is_sort(name)) known |= kSorts;
        if (op.kind == OpKind::kernel && is_gather(name)) known |= kGathers;
        if (op.kind == OpKind::kernel && is_slow(name)) known |= kSlow;
        if (op.kind == OpKind::kernel && is_recurrent(name)) known |= kRecurrent;
        if (op.kind == OpKind::kernel && is_double(name)) known |= kDouble;
        if (op.kind == OpKind::kernel && is_double_by_code(name)) known |= kDoubleCode;
        if ((known & kMemory) && is_softmax(name)) known |= kSoftmax;
        if ((known & kMemory) && is_beside_attention(name)) known |= kBesideAttention;
      }
      r.memory_kernel = known & kMemory;
      r.pointwise = known & kPointwise;
      r.layout = known & kLayout;
      r.reads_mask = known & kMask;
      r.optimizes = known & kOptimizer;
      r.product = known & kProduct;
      r.tf32 = known & kTf32;
      r.backward = known & kBackward;
      r.rounding = known & kRounding;
      r.shows_elements = known & kElements;
      r.float32_attention = known & kFloat32Attention;
      r.half_product = known & kHalf;
      r.integer_product = known & kInteger;
      r.updates_part = known & kUpdates;
      r.copies = known & kCopies;
      r.joins = known & kJoins;
      r.detour = known & kDetour;
      r.sorts = known & kSorts;
      r.gathers = known & kGathers;
      r.slow = (known & kSlow) ||
               is_serial(trace.names[op.name], r.blocks, op.end_ns - op.start_ns, multiprocessors);
      r.recurrent = known & kRecurrent;
      r.doubles = known & kDouble;
      r.double_code = known & kDoubleCode;
      r.softmax = known & kSoftmax;
      r.beside_attention = known & kBesideAttention;
      r.duration_ns = op.end_ns - op.start_ns;
      r.measured_start_ns = op.start_ns;
      if (op.kind == OpKind::copy &&
          (holds_call(op, *c) || is_blocking_copy(trace.names[c->name]))) {
        e.kind = ReplayCall::blocking_copy;
        r.from_call_start = op.start_ns >= c->start_ns;
        r.offset_ns = op.start_ns - c->start_ns;
      }
      event_of_.push_back(static_cast<uint32_t>(events_.size()));
      ops_.push_back(r);
    }
    e.ops = static_cast<uint32_t>(ops_.size()) - e.first_op;
    const uint64_t own =
        uint64_t{c->name} << 32 | (e.ops > 0 ? ops_[e.first_op].name : uint32_t{kNone});
    keys.push_back(last_key[e.process] * 0x9E3779B97F4A7C15u + own);
    last_key[e.process] = own;
    events_.push_back(e);
    call_start_ns_.push_back(c->start_ns);
    call_end_ns_.push_back(c->end_ns);
  }
  find_least(keys);
  find_feeds();
  find_releases();
  find_preparations();
  find_reads();
  find_copies_of_updates();
  find_scattered_weights(trace);
  find_readers_of_copies();
  find_written_attention();
  find_repeats();
  find_loops();
  find_micro_batches();
  find_types_before(trace, first_op);
}

// What may still be needed must not be changed: then a program that writes a few rows of a buffer
// writes all of it first.
void Replay::find_copies_of_updates() {
  constexpr int64_t kLarge = 1 << 20;
  std::map<uint32_t, std::vector<uint32_t>> copied;  // by stream, since the last kernel
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const ReplayOp& op = ops_[i];
    std::vector<uint32_t>& copies = copied[op.stream];
    if (op.leaf == Leaf::copy_device && op.bytes >= kLarge) copies.push_back(i);
    if (op.blocks == 0 && !op.graph) continue;
    for (const uint32_t c : copies)
      ops_[c].of_update = op.updates_part && op.duration_ns < ops_[c].duration_ns;
    copies.clear();
  }
}

// What repeats rows makes more to read: without it a reader may have less to do. One that takes longer
// than the copies does more than read them.
void Replay::find_readers_of_copies() {
  std::map<uint32_t, int64_t> copied_ns;  // by stream, since the last other kernel
  for (ReplayOp& op : ops_) {
    int64_t& ns = copied_ns[op.stream];
    if (op.copies) {
      if (!op.joins) ns += op.duration_ns;  // which has each row once
      continue;
    }
    if (op.blocks == 0) continue;
    op.reads_copies = op.duration_ns <= ns;
    ns = 0;
  }
}

void Replay::find_least(const std::vector<uint64_t>& keys) {
  constexpr size_t kEnough = 8;
  std::vector<uint32_t> by_key(keys.size());
  std::iota(by_key.begin(), by_key.end(), 0u);
  std::stable_sort(by_key.begin(), by_key.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  std::vector<int64_t> host, call;
  for (size_t from = 0, to = 0; from < by_key.size(); from = to) {
    host.clear();
    call.clear();
    for (to = from; to < by_key.size() && keys[by_key[to]] == keys[by_key[from]]; ++to) {
      host.push_back(events_[by_key[to]].host_ns);
      call.push_back(events_[by_key[to]].call_ns);
    }
    if (to - from < kEnough) continue;
    const auto tenth = static_cast<std::ptrdiff_t>((to - from) / 10);
    std::nth_element(host.begin(), host.begin() + tenth, host.end());
    std::nth_element(call.begin(), call.begin() + tenth, call.end());
    for (size_t i = from; i < to; ++i) {
      events_[by_key[i]].least_host_ns = host[static_cast<size_t>(tenth)];
      events_[by_key[i]].least_call_ns = call[static_cast<size_t>(tenth)];
    }
  }
}

// A state that is written to disk, or numbers that the host reckons with: runs of copies to the
// host without a kernel between them, up to a long stretch of host code.
void Replay::find_feeds() {
  std::vector<uint32_t> run;
  int64_t bytes = 0;
  bool long_work = false;
  const auto end_run = [&] {
    for (const uint32_t e : run) events_[e].feeds_host = long_work && bytes >= kSmallCopy;
    run.clear();
    bytes = 0;
    long_work = false;
  };
  for (uint32_t i = 0; i < events_.size(); ++i) {
    const ReplayEvent& e = events_[i];
    if (!run.empty())
      long_work = long_work || e.host_ns + e.blocked_ns + e.no_core_ns > kDispatchNs;
    int64_t out = 0;
    bool other = false;
    for (uint32_t o = e.first_op; o < e.first_op + e.ops; ++o) {
      const bool copy_out =
          ops_[o].leaf == Leaf::copy_out || ops_[o].leaf == Leaf::copy_out_pageable;
      out += copy_out ? ops_[o].bytes : 0;
      other = other || !copy_out;
    }
    if (other) {
      end_run();
    } else if (out > 0 || (e.kind == ReplayCall::sync && !run.empty())) {
      run.push_back(i);
      bytes += out;
    }
  }
  end_run();
}

// What an allocator does before it gives memory back: it waits until nobody uses it.
void Replay::find_releases() {
  bool allocates = false;
  for (size_t i = 0, from = 0; i <= events_.size(); ++i) {
    if (i < events_.size() && events_[i].ops == 0) {
      allocates = allocates || (events_[i].kind == ReplayCall::allocate && !events_[i].pins);
      continue;
    }
    for (size_t k = from; k < i; ++k)
      events_[k].with_release = allocates && events_[k].kind == ReplayCall::sync;
    from = i + 1;
    allocates = false;
  }
}

// Data that the thread that issues makes itself: long host work and the copies that take its fruit
// to the device, without a kernel between them.
void Replay::find_preparations() {
  int64_t bytes = 0, host_ns = 0;
  bool long_work = false;
  for (size_t i = 0, from = 0; i <= events_.size(); ++i) {
    bool copies_in = i < events_.size();
    int64_t in = 0;
    for (uint32_t o = 0; copies_in && o < events_[i].ops; ++o) {
      const ReplayOp& op = ops_[events_[i].first_op + o];
      copies_in = op.leaf == Leaf::copy_in || op.leaf == Leaf::copy_in_pageable;
      in += op.bytes >= kSmallCopy ? op.bytes : 0;  // many small ones are another matter
    }
    if (copies_in) {
      const ReplayEvent& e = events_[i];
      const int64_t own_ns = e.host_ns + e.blocked_ns + e.no_core_ns;
      host_ns += own_ns;
      long_work = long_work || own_ns > kDispatchNs || host_ns > kManyPiecesNs;
      bytes += in;
      continue;
    }
    for (size_t k = from; k < i && long_work && bytes >= kSmallCopy; ++k)
      events_[k].prepares = true;
    from = i + 1;
    bytes = host_ns = 0;
    long_work = false;
  }
}

// Checks and metrics: up to three kernels bound by memory before a value that is read.
void Replay::find_reads() {
  constexpr size_t kMostOfACheck = 3, kOfAGraph = 10;
  size_t reads = 0, kernels = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    const ReplayEvent& e = events_[i];
    const auto is_kernel = [&](const ReplayEvent& of) {
      return of.ops == 1 && ops_[of.first_op].blocks > 0;
    };
    kernels += is_kernel(e) ? 1 : 0;
    for (uint32_t o = e.first_op; o < e.first_op + e.ops; ++o)
      kernels += ops_[o].graph ? kOfAGraph : 0;
    if (e.ops != 1) continue;
    const ReplayOp& copy = ops_[e.first_op];
    if ((copy.leaf != Leaf::copy_out && copy.leaf != Leaf::copy_out_pageable) ||
        copy.bytes >= kSmallCopy)
      continue;
    ++reads;
    size_t found = 0;
    for (size_t k = i; k-- > 0 && found < kMostOfACheck;) {
      if (events_[k].ops == 0) continue;
      if (!is_kernel(events_[k]) || !ops_[events_[k].first_op].memory_kernel) break;
      ops_[events_[k].first_op].for_read = true;
      ++found;
    }
  }
  reads_per_kernel_ =
      static_cast<double>(reads) / static_cast<double>(std::max<size_t>(1, kernels));
}

// A layer that keeps no activations runs forward again before its backward pass: stretches of three
// kernels and more, products among them, as the forward pass before has them, between two kernels
// of the backward pass. Forward passes are what takes longest between two such kernels, wherever a
// step begins; another batch has one of its own.
void Replay::find_recomputed() {
  constexpr size_t kFewest = 3, kPlaces = 8;
  struct Gap {
    size_t from, to;
    int64_t ns;
  };
  const auto symbol = [](const ReplayOp& op) {
    return (uint64_t{op.name} << 32 ^ static_cast<uint64_t>(op.blocks)) * 0x9E3779B97F4A7C15u;
  };
  std::vector<uint32_t> kernels;
  std::vector<Gap> gaps;
  Gap gap{SIZE_MAX, 0, 0};
  for (uint32_t i = marks_.front(); i < marks_.back(); ++i) {
    if (ops_[i].blocks == 0) continue;
    kernels.push_back(i);
    gap.ns += ops_[i].duration_ns;
    if (!ops_[i].backward) continue;
    gap.to = kernels.size() - 1;
    gap.ns -= ops_[i].duration_ns;
    if (gap.from < gap.to) gaps.push_back(gap);
    gap = {kernels.size(), 0, 0};
  }
  const auto all_steps = static_cast<size_t>(steps());
  if (gaps.size() < 3 * all_steps) return;
  std::vector<int64_t> longest;
  for (const Gap& g : gaps) longest.push_back(g.ns);
  const auto nth = longest.begin() + static_cast<std::ptrdiff_t>(all_steps / 2);
  std::nth_element(longest.begin(), nth, longest.end(), std::greater<>());
  const int64_t least = *nth / 2;  // of a forward pass
  // The last of those kernels begin the backward pass; what has its place there is in the other
  // gaps more often.
  std::vector<uint64_t> symbols;
  for (const uint32_t i : kernels) symbols.push_back(symbol(ops_[i]));
  std::unordered_map<uint64_t, int64_t> forward;  // times there beyond times elsewhere
  for (const Gap& g : gaps)
    for (size_t i = g.from; i < g.to; ++i) forward[symbols[i]] += g.ns > least ? 1 : -1;
  std::unordered_map<uint64_t, std::vector<size_t>> places;  // in the forward pass before
  size_t forward_end = 0;
  std::vector<Gap> found;
  for (const Gap& g : gaps) {
    if (g.ns > least) {
      places.clear();
      forward_end = g.to;
      for (size_t i = g.from; i < g.to; ++i) {
        std::vector<size_t>& at = places[symbols[i]];
        if (forward[symbols[i]] >= 0 && at.size() < kPlaces) at.push_back(i);
      }
      continue;
    }
    for (size_t i = g.from; i < g.to;) {
      size_t n = 0;
      const auto at = places.find(symbols[i]);
      for (const size_t place : at == places.end() ? std::vector<size_t>{} : at->second) {
        size_t same = 0;
        while (place + same < forward_end && i + same < g.to &&
               symbols[place + same] == symbols[i + same] && forward[symbols[i + same]] >= 0)
          ++same;
        n = std::max(n, same);
      }
      size_t products = 0;
      for (size_t k = i; k < i + n; ++k) products += ops_[kernels[k]].product;
      if (n < kFewest || products == 0 || products == n) {
        ++i;
        continue;
      }
      found.push_back({i, i + n, 0});
      i += n;
    }
  }
  if (found.size() < 2 * all_steps) return;
  recomputed_stretches_ = static_cast<double>(found.size()) / static_cast<double>(all_steps);
  for (const Gap& g : found)
    for (size_t i = g.from; i < g.to; ++i) ops_[kernels[i]].recomputed = true;
}

}  // namespace saturate::observe
