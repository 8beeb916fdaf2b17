// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>

#include "base/error.h"
#include "observe/analyse/analysis.h"
#include "observe/analyse/attribute.h"
#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

constexpr int64_t kStartSlackNs = 8'000;  // scatter of starts that needs no explanation
constexpr int64_t kSideSlackNs = 10'000;  // from the end of one stream's work to what waited for it

constexpr int64_t kGraphGapNs = 300;  // between kernels of a graph: 0.4 us on an H200
// Batches come at a pace of their own where waiting for them is as much of the time; else they are
// handed over when they are asked for.
constexpr double kPaced = 0.25;

int64_t median_or(std::vector<int64_t> values, int64_t otherwise) {
  if (values.empty()) return otherwise;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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
  enum : uint8_t {
    kUnread = 0,
    kRead = 1,
    kMemory = 2,
    kPointwise = 4,
    kLayout = 8,
    kMask = 16,
    kOptimizer = 32
  };
  std::vector<uint8_t> of_name(trace.names.size(), kUnread);
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
    e.kind = kind_of(classify_call(trace.names[c->name]));
    e.pins = e.kind == ReplayCall::allocate && pins_memory(trace.names[c->name]);
    e.first_op = static_cast<uint32_t>(ops_.size());
    e.call_ns = std::max<int64_t>(0, c->end_ns - std::max(c->start_ns, reach));
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
        if (is_host_wait(pieces[p].leaf) || pieces[p].leaf == Leaf::gil) e.blocked_ns += ns;
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
      r.blocks = op.kind == OpKind::kernel ? op.size : 0;
      r.pageable = op.kind == OpKind::copy && op.memory == HostMemory::pageable;
      r.has_room = r.blocks > 0 && 2 * r.blocks <= multiprocessors;
      r.leaf = leaves.of(op, multiprocessors);
      uint8_t& known = of_name[op.name];
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
      }
      r.memory_kernel = known & kMemory;
      r.pointwise = known & kPointwise;
      r.layout = known & kLayout;
      r.reads_mask = known & kMask;
      r.optimizes = known & kOptimizer;
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
  constexpr size_t kMostOfACheck = 3;
  size_t reads = 0, kernels = 0;
  for (size_t i = 0; i < events_.size(); ++i) {
    const ReplayEvent& e = events_[i];
    const auto is_kernel = [&](const ReplayEvent& of) {
      return of.ops == 1 && ops_[of.first_op].blocks > 0;
    };
    kernels += is_kernel(e) ? 1 : 0;
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

void Replay::visit(
    const std::function<void(const ReplayEvent&, const ReplayOp*, int64_t)>& see) const {
  size_t step = 0;
  for (const ReplayEvent& e : events_) {
    while (step < marks_.size() && marks_[step] < e.first_op + e.ops) ++step;
    see(e, ops_.data() + e.first_op, static_cast<int64_t>(step) - 1);
  }
}

// The machine's constants: medians over the operations and calls that show them.
void Replay::measure_latencies() {
  std::vector<int64_t> free = stream_free_ns_, latencies, gaps;
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    const ReplayOp& op = ops_[i];
    const int64_t issued = call_end_ns_[event_of_[i]], start = op.measured_start_ns;
    int64_t& before = free[op.stream];
    if (before + 2'000 < call_start_ns_[event_of_[i]]) {
      if (!op.from_call_start && start - issued < 50'000) latencies.push_back(start - issued);
    } else if (before > issued && start >= before && start - before < 20'000) {
      gaps.push_back(start - before);
    }
    before = std::max(before, start + op.duration_ns);
  }
  latency_ns_ = median_or(latencies, 2'000);
  gap_ns_ = median_or(gaps, 1'000);
}

void Replay::find_waits() {
  // In order of end, to find what ended before a time.
  std::vector<uint32_t> by_end(ops_.size());
  for (uint32_t i = 0; i < by_end.size(); ++i) by_end[i] = i;
  const auto end_of = [&](uint32_t i) { return ops_[i].measured_start_ns + ops_[i].duration_ns; };
  std::sort(by_end.begin(), by_end.end(),
            [&](uint32_t a, uint32_t b) { return end_of(a) < end_of(b); });
  // The latest to end in (after, until] among operations issued before event `e`, or kNone.
  const auto last_ended = [&](int64_t after, int64_t until, uint32_t e, uint32_t not_stream) {
    auto at = std::partition_point(by_end.begin(), by_end.end(),
                                   [&](uint32_t i) { return end_of(i) <= until; });
    for (int tries = 0; at != by_end.begin() && tries < 64; ++tries) {
      const uint32_t i = *--at;
      if (end_of(i) <= after) break;
      if (event_of_[i] < e && ops_[i].stream != not_stream) return i;
    }
    return kNone;
  };

  std::vector<int64_t> sync_returns, copy_returns, launch_times;
  for (const ReplayEvent& e : events_) {
    if (e.kind == ReplayCall::launch) launch_times.push_back(e.call_ns);
  }
  const int64_t usual_launch = median_or(launch_times, 5'000);
  for (uint32_t e = 0; e < events_.size(); ++e) {
    ReplayEvent& event = events_[e];
    const bool queue_full = event.kind == ReplayCall::launch && event.call_ns > 50'000 &&
                            event.call_ns > 20 * usual_launch;
    if (event.kind == ReplayCall::sync || queue_full) {
      event.waits_for = last_ended(call_start_ns_[e], call_end_ns_[e], e, kNone);
      if (event.waits_for == kNone) continue;
      if (event.kind == ReplayCall::sync)
        sync_returns.push_back(call_end_ns_[e] - end_of(event.waits_for));
      event.call_ns = std::min(event.call_ns, queue_full ? usual_launch : int64_t{2'000});
    } else if (event.kind == ReplayCall::blocking_copy && event.ops > 0) {
      const uint32_t op = event.first_op + event.ops - 1;
      const int64_t late = end_of(op) - call_end_ns_[e];  // as holds_call has it
      if (late > 0 && !(ops_[op].pageable && late < ops_[op].duration_ns / 2)) continue;
      event.waits_for = op;
      copy_returns.push_back(call_end_ns_[e] - end_of(op));
      event.call_ns = std::min<int64_t>(event.call_ns, 5'000);
    }
  }
  sync_return_ns_ = median_or(sync_returns, 5'000);
  copy_return_ns_ = median_or(copy_returns, 5'000);

  std::vector<std::vector<uint32_t>> by_start(streams_);
  for (uint32_t i = 0; i < ops_.size(); ++i) by_start[ops_[i].stream].push_back(i);
  for (std::vector<uint32_t>& of : by_start)
    std::sort(of.begin(), of.end(), [&](uint32_t a, uint32_t b) {
      return ops_[a].measured_start_ns < ops_[b].measured_start_ns;
    });
  std::vector<int64_t> free = stream_free_ns_;
  for (uint32_t i = 0; i < ops_.size(); ++i) {
    ReplayOp& op = ops_[i];
    const uint32_t e = event_of_[i];
    int64_t& before = free[op.stream];
    if (op.from_call_start) {
      // Waiting for its own stream is not the copy's own preparation.
      if (before + gap_ns_ > call_start_ns_[e])
        op.offset_ns = std::min<int64_t>(op.offset_ns, 5'000);
    } else {
      const int64_t expected = std::max(call_end_ns_[e] + latency_ns_, before + gap_ns_);
      if (op.measured_start_ns > expected + kStartSlackNs) {
        op.after =
            last_ended(op.measured_start_ns - kSideSlackNs, op.measured_start_ns, e, op.stream);
        if (op.after == kNone) find_room(i, expected, by_start);
      }
    }
    before = std::max(before, end_of(i));
  }
}

// The work of another stream that an operation waited beside: a kernel that fills the device lets the
// next one in when its last blocks run. What the device stands still in after that is unexplained.
void Replay::find_room(uint32_t i, int64_t expected_ns,
                       const std::vector<std::vector<uint32_t>>& by_start) {
  ReplayOp& op = ops_[i];
  const int64_t start = op.measured_start_ns;
  const auto end_of = [&](uint32_t o) { return ops_[o].measured_start_ns + ops_[o].duration_ns; };
  uint32_t running = kNone, ended = kNone;
  for (const std::vector<uint32_t>& stream : by_start) {
    if (stream.empty() || ops_[stream.front()].stream == op.stream) continue;
    auto at = std::partition_point(stream.begin(), stream.end(),
                                   [&](uint32_t o) { return ops_[o].measured_start_ns < start; });
    while (at != stream.begin() && event_of_[at[-1]] >= event_of_[i]) --at;
    if (at == stream.begin()) continue;
    const uint32_t o = at[-1];
    if (ops_[o].device != op.device || end_of(o) <= expected_ns) continue;
    uint32_t& best = end_of(o) > start ? running : ended;
    const bool nearer =
        best == kNone || std::abs(end_of(o) - start) < std::abs(end_of(best) - start);
    if (nearer) best = o;
  }
  op.after = running != kNone ? running : ended;
  if (running != kNone) {
    op.after_part = static_cast<double>(start - ops_[running].measured_start_ns) /
                    static_cast<double>(ops_[running].duration_ns);
  } else {
    op.extra_ns =
        start - std::max(expected_ns, ended == kNone ? expected_ns : end_of(ended) + gap_ns_);
    op.extra_ns = std::max<int64_t>(0, op.extra_ns);
  }
}

// The share of the time that is inside waits that nothing explains, on any stream.
double Replay::unexplained_share() const {
  std::vector<std::pair<int64_t, int64_t>> waits;
  for (const ReplayOp& op : ops_)
    if (op.extra_ns > 0)
      waits.emplace_back(op.measured_start_ns - op.extra_ns, op.measured_start_ns);
  std::sort(waits.begin(), waits.end());
  int64_t sum = 0, reach = INT64_MIN;
  for (const auto& [from, to] : waits) {
    sum += std::max<int64_t>(0, to - std::max(from, reach));
    reach = std::max(reach, to);
  }
  return std::min(1.0, static_cast<double>(sum) /
                           static_cast<double>(std::max<int64_t>(1, measured_.total_ns)));
}

ReplayTimes Replay::run(const Edit& edit) const {
  std::vector<int64_t> free = stream_free_ns_, starts(ops_.size()), ends(ops_.size());
  std::vector<int64_t> cursors = process_start_ns_;
  std::vector<ReplayOp> scratch;
  for (const ReplayEvent& original : events_) {
    ReplayEvent e = original;
    scratch.assign(ops_.begin() + e.first_op, ops_.begin() + e.first_op + e.ops);
    if (edit) edit(e, scratch.data());
    int64_t& now = cursors[e.process];
    if (e.arrival_ns >= 0 && e.loader_ns > 0)
      now = std::max(now, process_start_ns_[e.process] + e.arrival_ns);
    else
      now += e.loader_ns;
    now += e.host_ns + e.blocked_ns + e.no_core_ns;
    const int64_t called = now, returned = now + e.call_ns;
    for (uint32_t i = 0; i < e.ops; ++i) {
      const ReplayOp& op = scratch[i];
      int64_t start =
          op.from_call_start ? called + op.offset_ns : std::max(called, returned + latency_ns_);
      // Copies that travel as one block have no gap.
      const int64_t gap = !op.back_to_back ? gap_ns_
                          : op.bytes > 0   ? 0
                                           : std::min(gap_ns_, kGraphGapNs);
      start = std::max(start, free[op.stream] + gap);
      if (op.after != kNone)
        start = std::max(
            start,
            op.after_part < 1
                ? starts[op.after] +
                      static_cast<int64_t>(op.after_part *
                                           static_cast<double>(ends[op.after] - starts[op.after]))
                : ends[op.after] + gap_ns_);
      start += op.extra_ns;
      starts[e.first_op + i] = start;
      ends[e.first_op + i] = start + op.duration_ns;
      // An operation that an edit removed holds up nobody.
      if (op.duration_ns > 0 || ops_[e.first_op + i].duration_ns == 0)
        free[op.stream] = start + op.duration_ns;
    }
    now = returned;
    if (e.waits_for != kNone) {
      const int64_t return_ns = e.kind == ReplayCall::sync            ? sync_return_ns_
                                : e.kind == ReplayCall::blocking_copy ? copy_return_ns_
                                                                      : 0;
      now = std::max(now, ends[e.waits_for] + return_ns);
    }
  }
  return times_of(starts);
}

void Replay::remove_cost(double slowdown) {
  if (!(slowdown > 1) || !usable()) return;
  const double target = run().step_ns / slowdown;
  // A call shorter than that has its cost in the code before it.
  const auto cheaper = [](int64_t cost) {
    return [cost](ReplayEvent& e, ReplayOp*) {
      const int64_t call = std::min(cost, e.call_ns);
      e.call_ns -= call;
      e.host_ns -= std::min(cost - call, e.host_ns);
    };
  };
  int64_t low = 0, high = 10'000;  // several times what was ever measured
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (run(cheaper(middle)).step_ns > target ? low : high) = middle;
  }
  for (ReplayEvent& e : events_) cheaper(low)(e, nullptr);
  // Where the device is what a step waits for, its stamps at both ends of a kernel are the cost.
  int64_t least = std::min(gap_ns_, kGraphGapNs), most = gap_ns_;
  while (most - least > 1) {
    gap_ns_ = (least + most) / 2;
    (run().step_ns > target ? most : least) = gap_ns_;
  }
  gap_ns_ = most;
}

bool Replay::computes() const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [](const ReplayOp& op) { return op.blocks > 0 || op.leaf == Leaf::graph; });
}

Replay::WithoutPart Replay::step_without(
    const std::function<int64_t(const ReplayEvent&)>& part) const {
  constexpr double kHardly = 0.1, kFifth = 0.2, kAsMuch = 0.7;
  constexpr size_t kEnough = 8;
  struct Step {
    double took = 0, part = 0;
    bool optimizes = false;
    std::map<uint32_t, int64_t> computed;  // by name
    int64_t all() const {
      return std::accumulate(computed.begin(), computed.end(), int64_t{0},
                             [](int64_t sum, const auto& of) { return sum + of.second; });
    }
  };
  std::vector<Step> all(static_cast<size_t>(std::max<int64_t>(0, steps())));
  double mean = 0;
  visit([&](const ReplayEvent& e, const ReplayOp* ops, int64_t step) {
    if (step < 0 || static_cast<size_t>(step) >= all.size()) return;
    Step& of = all[static_cast<size_t>(step)];
    const auto ns = static_cast<double>(part(e));
    of.part += ns;
    mean += ns / static_cast<double>(all.size());
    for (uint32_t i = 0; i < e.ops; ++i) {
      if (ops[i].bytes == 0) of.computed[ops[i].name] += ops[i].duration_ns;
      of.optimizes = of.optimizes || ops[i].optimizes;
    }
  });
  for (size_t i = 0; i < all.size(); ++i)
    all[i].took = static_cast<double>(ops_[marks_[i + 1]].measured_start_ns -
                                      ops_[marks_[i]].measured_start_ns);
  const auto with = static_cast<size_t>(std::count_if(
      all.begin(), all.end(), [&](const Step& s) { return s.part >= kHardly * mean; }));
  const size_t left = all.size() - std::min(all.size(), 2 * with);
  if (!(mean > 0) || with == 0 || left < kEnough ||
      static_cast<double>(left) < kFifth * static_cast<double>(all.size()))
    return {};
  std::sort(all.begin(), all.end(), [](const Step& a, const Step& b) { return a.took < b.took; });
  WithoutPart result;
  std::vector<int64_t> computed, others;
  std::map<uint32_t, int64_t> usual;  // of a step without
  size_t optimize = 0, others_optimize = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i < left) {
      computed.push_back(all[i].all());
      optimize += all[i].optimizes;
      result.step_ns += all[i].took / static_cast<double>(left);
      for (const auto& [name, ns] : all[i].computed) usual[name] += ns;
    }
    if (all[i].part < kHardly * mean) continue;
    others.push_back(all[i].all());
    others_optimize += all[i].optimizes;
  }
  // Shorter since they compute less: another kind of step, unless all of them train. What the others
  // compute beyond stays, but for kernels that no such step has: those were tried.
  const bool as_much = static_cast<double>(median_or(computed, 0)) >=
                       kAsMuch * static_cast<double>(median_or(others, 0));
  if (as_much) return result;
  if (optimize < left || others_optimize < others.size()) return {};
  for (const Step& s : all) {
    for (const auto& [name, ns] : s.computed) {
      const auto at = usual.find(name);
      if (at == usual.end()) continue;
      const double beyond =
          static_cast<double>(ns) - static_cast<double>(at->second) / static_cast<double>(left);
      result.more_ns += beyond / static_cast<double>(all.size());
    }
  }
  result.more_ns = std::max(0.0, result.more_ns);
  return result;
}

DispatchScale Replay::scale_dispatch(double step_ns, double hidden) {
  const auto scaled = [](double factor) -> Edit {
    return [factor](ReplayEvent& e, ReplayOp*) {
      const auto shrink = [&](int64_t& ns) {
        ns = static_cast<int64_t>(static_cast<double>(ns) * factor);
      };
      if (e.host_ns <= kDispatchNs) shrink(e.host_ns);
      if (e.kind == ReplayCall::launch || e.kind == ReplayCall::copy ||
          e.kind == ReplayCall::allocate || e.kind == ReplayCall::other)
        shrink(e.call_ns);
    };
  };
  constexpr double kLeast = 0.05;
  constexpr double kShows = 0.98;  // of a step: less is noise
  constexpr double kLonger = 1.5;  // the pace of a machine changes, but not by more
  const double base = run().step_ns;
  const auto shrink_to = [&](double factor) {
    const Edit shrink = scaled(factor);
    for (ReplayEvent& e : events_) shrink(e, nullptr);
  };
  if (step_ns > kLonger * base)
    throw Error(
        Errc::invalid_argument, "doctor",
        fmt::format("a step of {:.3f} ms without recording does not fit this capture, whose "
                    "steps take {:.3f} ms with it; give --step-ms the time of a step of the same "
                    "program without the profiler, or leave it out",
                    step_ns / 1e6, base / 1e6));
  const double least = run(scaled(kLeast)).step_ns;
  if (least > step_ns * 1.25)
    throw Error(
        Errc::invalid_argument, "doctor",
        fmt::format("a step of {:.3f} ms without recording does not fit this capture, whose steps "
                    "take {:.3f} ms and would take {:.3f} ms if launches cost nothing; give "
                    "--step-ms the time of a step of the same program without the profiler, or "
                    "leave it out",
                    step_ns / 1e6, base / 1e6, std::min(least, base) / 1e6));
  if (hidden < 1 && step_ns > kShows * base && run(scaled(hidden)).step_ns > kShows * base) {
    shrink_to(hidden);
    return {hidden, true};
  }
  if (step_ns >= base || least > step_ns) return {};
  double low = kLeast, high = 1;
  for (int i = 0; i < 20; ++i) {
    const double middle = (low + high) / 2;
    (run(scaled(middle)).step_ns > step_ns ? high : low) = middle;
  }
  shrink_to(low);
  return {low};
}

// The first step of the window starts with work queued before it; the others count.
ReplayTimes Replay::times_of(const std::vector<int64_t>& starts) const {
  ReplayTimes t;
  const size_t first = marks_.size() > 3 ? 1 : 0;
  t.total_ns = starts[marks_.back()] - starts[marks_[first]];
  t.step_ns = static_cast<double>(t.total_ns) / static_cast<double>(marks_.size() - 1 - first);
  return t;
}

double Replay::serial_ns(const std::function<int64_t(const ReplayOp&)>& of) const {
  std::map<uint32_t, int64_t> sums;
  const int64_t end = marks_.empty() ? INT64_MAX : ops_[marks_.back()].measured_start_ns;
  for (const ReplayOp& op : ops_) {
    if (op.measured_start_ns < end) sums[op.device] += of(op);
  }
  int64_t most = 0;
  for (const auto& [device, ns] : sums) most = std::max(most, ns);
  return static_cast<double>(most) / static_cast<double>(std::max<int64_t>(1, steps()));
}

}  // namespace saturate::observe
