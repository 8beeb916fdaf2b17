// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>

#include "base/error.h"
#include "observe/analyse/analysis.h"
#include "observe/analyse/median.h"
#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

constexpr int64_t kStartSlackNs = 8'000;  // scatter of starts that needs no explanation
constexpr int64_t kSideSlackNs = 10'000;  // from the end of one stream's work to what waited for it

// What a launch takes that waits for nothing: of a tenth of them, for a host that is ahead of the device
// waits in most; an assumption where all do.
int64_t usual_of(std::vector<int64_t> launches) {
  constexpr int64_t kFast = 10'000;
  if (launches.empty()) return 5'000;
  const auto tenth = launches.begin() + static_cast<int64_t>(launches.size() / 10);
  std::nth_element(launches.begin(), tenth, launches.end());
  return std::min(kFast, *tenth);
}

constexpr int64_t kGraphGapNs = 300;  // between kernels of a graph: 0.4 us on an H200

// The most that recording a call with one operation costs: two to three times what it was seen to
// cost, for slower hosts. A whole graph was seen to cost as much as six of them.
constexpr int64_t kMostCostNs = 5'000, kCallsOfGraph = 6;

}  // namespace

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

  std::vector<int64_t> sync_returns, launch_times;
  // A copy from pinned blocks to the program's own memory goes on after the device's part.
  std::map<std::pair<uint32_t, int>, std::vector<int64_t>> copy_returns;  // by name and size
  const auto copy_key = [&](const ReplayOp& op) {
    return std::pair{op.name, std::bit_width(static_cast<uint64_t>(op.bytes))};
  };
  for (const ReplayEvent& e : events_) {
    if (e.kind == ReplayCall::launch) launch_times.push_back(e.call_ns);
  }
  const int64_t usual_launch = usual_of(launch_times);
  // The queue of a device is full: the call waits for a place in it, and what it issues starts long
  // afterwards. So the host does where it keeps ahead of the device, in every call.
  const auto queue_is_full = [&](uint32_t e) {
    constexpr int64_t kLongNs = 20'000, kTimes = 4, kBehind = 20;
    const ReplayEvent& event = events_[e];
    if (event.kind != ReplayCall::launch || event.ops == 0) return false;
    const int64_t ns = event.call_ns,
                  late = ops_[event.first_op].measured_start_ns - call_end_ns_[e];
    return (ns > 50'000 && ns > 20 * usual_launch) ||
           (ns > kLongNs && ns > kTimes * usual_launch && late > kBehind * ns);
  };
  for (uint32_t e = 0; e < events_.size(); ++e) {
    ReplayEvent& event = events_[e];
    const bool queue_full = queue_is_full(e);
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
      copy_returns[copy_key(ops_[op])].push_back(call_end_ns_[e] - end_of(op));
      event.call_ns = std::min<int64_t>(event.call_ns, 5'000);
    }
  }
  sync_return_ns_ = median_or(sync_returns, 5'000);
  std::map<std::pair<uint32_t, int>, int64_t> usual_return;
  for (const auto& [key, returns] : copy_returns) usual_return[key] = median_or(returns, 5'000);
  for (ReplayEvent& e : events_)
    if (e.kind == ReplayCall::blocking_copy && e.waits_for != kNone)
      e.return_ns = usual_return[copy_key(ops_[e.waits_for])];

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
                                : e.kind == ReplayCall::blocking_copy ? e.return_ns
                                                                      : 0;
      now = std::max(now, ends[e.waits_for] + return_ns);
    }
  }
  ReplayTimes times = times_of(starts);
  if (!begins_beside_work()) return times;
  // Copies on a stream of their own run ahead of the work that needs them, for nothing shows that
  // they wait for its buffers; the work itself takes its time.
  const double least = busiest_stream_ns(starts, ends);
  if (times.step_ns < least) {
    times.total_ns =
        static_cast<int64_t>(static_cast<double>(times.total_ns) * least / times.step_ns);
    times.step_ns = least;
  }
  return times;
}

double Replay::remove_cost(double slowdown) {
  if (!(slowdown > 1) || !usable()) return std::max(1.0, slowdown);
  const double recorded = run().step_ns, target = recorded / slowdown;
  // A call shorter than that has its cost in the code before it.
  const auto cheaper = [](int64_t of_call) {
    return [of_call](ReplayEvent& e, ReplayOp* ops) {
      const int64_t cost = of_call * (e.ops == 0 ? 1 : ops->graph ? kCallsOfGraph : e.ops);
      const int64_t call = std::min(cost, e.call_ns);
      e.call_ns -= call;
      e.host_ns -= std::min(cost - call, e.host_ns);
    };
  };
  int64_t low = 0, high = kMostCostNs;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (run(cheaper(middle)).step_ns > target ? low : high) = middle;
  }
  for (ReplayEvent& e : events_) cheaper(low)(e, ops_.data() + e.first_op);
  // Where the device is what a step waits for, its stamps at both ends of a kernel are the cost.
  int64_t least = std::min(gap_ns_, kGraphGapNs), most = gap_ns_;
  while (most - least > 1) {
    gap_ns_ = (least + most) / 2;
    (run().step_ns > target ? most : least) = gap_ns_;
  }
  gap_ns_ = most;
  const double left = run().step_ns;
  return left > 0 ? std::max(1.0, recorded / left) : 1;
}

bool Replay::computes() const {
  return std::any_of(ops_.begin(), ops_.end(),
                     [](const ReplayOp& op) { return op.blocks > 0 || op.graph; });
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
  const size_t first = first_counted();
  t.total_ns = starts[marks_.back()] - starts[marks_[first]];
  t.step_ns = static_cast<double>(t.total_ns) / static_cast<double>(marks_.size() - 1 - first);
  return t;
}

// Whether the stream on which a step begins computes nothing.
bool Replay::begins_beside_work() const {
  const uint32_t stream = ops_[marks_.front()].stream;
  return std::none_of(ops_.begin(), ops_.end(), [&](const ReplayOp& op) {
    return op.stream == stream && (op.blocks > 0 || op.graph);
  });
}

// Of a step, the work of the stream that has most.
double Replay::busiest_stream_ns(const std::vector<int64_t>& starts,
                                 const std::vector<int64_t>& ends) const {
  std::vector<int64_t> work(streams_);
  const size_t first = first_counted();
  for (uint32_t i = marks_[first]; i < marks_.back(); ++i)
    work[ops_[i].stream] += ends[i] - starts[i];
  return static_cast<double>(*std::max_element(work.begin(), work.end())) /
         static_cast<double>(marks_.size() - 1 - first);
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
