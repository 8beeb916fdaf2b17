// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/analyser.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "observe/analyse/attribute.h"
#include "observe/analyse/compile_times.h"
#include "observe/analyse/issue_lines.h"
#include "observe/analyse/kernel_work.h"
#include "observe/analyse/names.h"
#include "observe/analyse/waits_beside.h"

namespace saturate::observe {
namespace {

constexpr double kMostOfTheTime = 0.9;    // analysed: less is reported
constexpr double kPartCompiled = 0.1;     // outside of what is: less is not reported
constexpr size_t kBuckets = 512;          // of a timeline; halved into 256 when it is full
constexpr size_t kMaxSteps = 65'536;      // kept with their budgets
constexpr int64_t kLongWaitNs = 500'000;  // as the shortest that samples of threads show

// Both this operation and the one before it on its device carry little to the device.
bool in_run_of_copies(const Trace& trace, uint32_t index) {
  const auto small = [](const DeviceOp& op) {
    return op.kind == OpKind::copy && op.copy == CopyKind::host_to_device && op.size < kSmallCopy;
  };
  if (!small(trace.ops[index])) return false;
  const uint32_t device = trace.streams[trace.ops[index].stream].device;
  for (uint32_t i = index; i-- > 0;) {
    if (trace.streams[trace.ops[i].stream].device == device) return small(trace.ops[i]);
  }
  return false;
}

// The largest value of each step, as far as the curve separates steps; without steps of each of
// 32 parts, and of 256 where there are more steps. What comes and goes within a step does not show
// in them. Memory stays as it is until the next sample.
std::vector<Curve::Point> step_peaks(const Curve& curve, const std::vector<int64_t>& begins) {
  constexpr int64_t kMostParts = 256;
  const std::vector<Curve::Point> points = curve.points();
  std::vector<Curve::Point> peaks;
  if (points.empty()) return peaks;
  const int64_t length = points.back().time_ns + 1;
  const auto steps = static_cast<int64_t>(begins.size());
  const auto part_of = [&](int64_t time_ns) -> int64_t {
    if (steps < 2 || steps > kMostParts) {
      const int64_t parts = steps < 2 ? 32 : kMostParts;
      return static_cast<int64_t>(static_cast<double>(parts) * static_cast<double>(time_ns) /
                                  static_cast<double>(length));
    }
    return std::upper_bound(begins.begin(), begins.end(), curve.first_ns() + time_ns) -
           begins.begin();
  };
  int64_t part = -1;
  double before = 0;
  for (const Curve::Point& p : points) {
    const int64_t now = part_of(p.time_ns);
    if (now != part || peaks.empty()) {
      for (++part; !peaks.empty() && part < now; ++part) peaks.push_back({p.time_ns, before});
      peaks.push_back(p);
      part = now;
    }
    peaks.back().most = std::max(peaks.back().most, p.most);
    before = p.most;
  }
  return peaks;
}

}  // namespace

struct Analyser::Device {
  DeviceAnalysis result;
  int64_t done_ns = 0;  // attributed up to here
  std::unordered_map<uint32_t, KernelStat> kernels;
  std::map<std::pair<Leaf, uint32_t>, NamedTime> evidence;
  WaitsBeside::Sums beside;
  uint32_t gap_op = kNone;  // of the last idle segment
  int64_t gap_reach_ns = 0;
  bool waited = false;  // the host waited for the device within that gap
  // Host code in that gap; and of it what is dispatch as long as it does not add up.
  int64_t gap_host_ns = 0;
  Budget gap_short;
  HostLineCounts lines;
  IssueLines issued;
};

struct Analyser::State {
  AnalyseOptions options;
  bool begun = false;
  StepRule rule;
  std::vector<int64_t> begins;  // of steps, on the device of the rule
  std::vector<bool> regular;
  std::vector<Budget> budgets;   // by step, on that device; at most kMaxSteps
  std::vector<int64_t> kernels;  // as many, or fewer
  size_t warm_up = 0;
  int64_t from_ns = 0, first_start_ns = INT64_MAX, last_end_ns = INT64_MIN;
  int64_t records = 0;
  std::map<uint32_t, Device> devices;
  std::map<uint32_t, MemorySample> memory_before;  // the last sample before from_ns, by device
  std::optional<Replay> replay;
};

Analyser::Analyser(AnalyseOptions options) : state_(std::make_unique<State>()) {
  state_->options = options;
}
Analyser::~Analyser() = default;

const std::optional<Replay>& Analyser::replay() const { return state_->replay; }

void Analyser::begin(const Trace& window, const HostTimeline& host) {
  State& s = *state_;
  s.begun = true;
  s.rule = find_step_rule(window, host);
  const StepMarks marks = mark_steps(s.rule, window, host);
  const size_t start = s.options.warm_up
                           ? 0
                           : std::max({start_up_steps(marks), steps_after_compiling(marks, window),
                                       steps_after_pauses(marks)});
  std::vector<int64_t> durations;
  for (size_t i = start + 1; i < marks.begin_ns.size(); ++i)
    durations.push_back(marks.begin_ns[i] - marks.begin_ns[i - 1]);
  s.warm_up = s.options.warm_up ? static_cast<size_t>(std::max<int64_t>(0, *s.options.warm_up))
                                : warm_up_steps(durations);
  if (s.warm_up > 0 && s.warm_up >= durations.size()) {
    throw Error(
        Errc::invalid_argument, "doctor",
        "only " + std::to_string(durations.size()) +
            " whole steps were found at the start, none would be left after the warm-up; give "
            "a smaller --warmup or record more steps");
  }
  s.warm_up += start;
  s.from_ns = marks.begin_ns.empty() ? window.ops.front().start_ns : marks.begin_ns[s.warm_up];
  s.replay.emplace(window, host, s.rule.device, marks.begin_ns, s.from_ns,
                   marks.begin_ns.empty() ? window.ops.back().start_ns : marks.begin_ns.back());
}

void Analyser::consume(Trace& window, bool last) {
  State& s = *state_;
  if (window.ops.empty() && !s.begun) return;
  const HostTimeline host(window);
  if (!s.begun) begin(window, host);

  const StepMarks marks = mark_steps(s.rule, window, host);
  for (size_t i = 0; i < marks.begin_ns.size(); ++i) {
    if (s.begins.empty() || marks.begin_ns[i] > s.begins.back()) {
      s.begins.push_back(marks.begin_ns[i]);
      s.regular.push_back(marks.regular[i]);
    } else if (marks.begin_ns[i] == s.begins.back()) {
      s.regular.back() = marks.regular[i];  // its end was not yet known
    }
  }

  // Each device up to the start of one of its operations, so that no gap is cut; the device of the
  // steps up to the start of a step if there is one, the others not beyond it.
  std::map<uint32_t, int64_t> cuts, ends;
  int64_t limit = INT64_MAX;
  if (!last && !marks.begin_ns.empty()) limit = marks.begin_ns.back();
  for (const DeviceOp& op : window.ops) {
    const uint32_t device = window.streams[op.stream].device;
    s.first_start_ns = std::min(s.first_start_ns, op.start_ns);
    s.last_end_ns = std::max(s.last_end_ns, op.end_ns);
    ends[device] = std::max(ends[device], op.end_ns);
    if (op.start_ns <= limit) cuts[device] = op.start_ns;
  }
  const bool steps = s.begins.size() >= 2;
  const int64_t final_ns = steps ? s.begins.back() : s.last_end_ns;
  for (const auto& [device, end] : ends) {
    auto [at, fresh] = s.devices.try_emplace(device);
    Device& d = at->second;
    if (fresh) {
      d.result.device = device;
      d.result.from_ns = d.done_ns = s.from_ns;
    }
    if (!last && cuts.contains(device)) process(window, host, d, cuts[device]);
  }
  if (last) {
    for (auto& [id, d] : s.devices) process(window, host, d, final_ns);
  }
  add_memory(window);

  // What is over on its device is settled. Calls whose operations may still come are kept.
  const size_t before = window.records();
  if (last) {
    s.records += static_cast<int64_t>(before);
    return;
  }
  int64_t settled = INT64_MAX;
  for (const auto& [id, d] : s.devices) settled = std::min(settled, d.done_ns);
  constexpr int64_t kLongestQueueNs = 10'000'000'000;
  std::vector<bool> keep = calls_to_keep(window, host, settled, settled - kLongestQueueNs);
  if (s.rule.anchor.with_calls) keep_calls_before(window, host, settled - kLongestQueueNs, keep);
  size_t kept = 0;
  for (size_t i = 0; i < window.calls.size(); ++i) {
    if (keep[i]) window.calls[kept++] = window.calls[i];
  }
  window.calls.resize(kept);
  std::erase_if(window.ops, [&](const DeviceOp& op) {
    return op.end_ns <= s.devices.at(window.streams[op.stream].device).done_ns &&
           op.start_ns < s.devices.at(window.streams[op.stream].device).done_ns;
  });
  // The host may be steps ahead: marks of steps stay as long as calls do.
  std::erase_if(window.spans, [&](const HostSpan& span) {
    const int64_t stays = span.kind == SpanKind::range ? kLongestQueueNs : 0;
    return span.end_ns <= settled - stays;
  });
  s.records += static_cast<int64_t>(before - window.records());
}

void Analyser::add_memory(Trace& window) {
  State& s = *state_;
  for (const MemorySample& m : window.memory) {
    if (m.time_ns < s.from_ns) {  // what was taken by then stays
      s.memory_before[m.device] = m;
      continue;
    }
    const auto at = s.devices.find(m.device);
    if (at == s.devices.end()) continue;
    MemoryUse& use = at->second.result.memory;
    if (use.allocated.empty()) add_memory_before(m.device, use);
    use.allocated.add(m.time_ns, static_cast<double>(m.allocated));
    use.reserved.add(m.time_ns, static_cast<double>(m.reserved));
  }
  window.memory.clear();
}

void Analyser::add_memory_before(uint32_t device, MemoryUse& use) const {
  const auto before = state_->memory_before.find(device);
  if (before == state_->memory_before.end()) return;
  use.allocated.add(state_->from_ns, static_cast<double>(before->second.allocated));
  use.reserved.add(state_->from_ns, static_cast<double>(before->second.reserved));
}

// Calls that reach beyond `settled_ns`, and those since `since_ns` whose operations are not settled
// or may still come.
std::vector<bool> Analyser::calls_to_keep(const Trace& window, const HostTimeline& host,
                                          int64_t settled_ns, int64_t since_ns) const {
  std::vector<bool> pending(window.calls.size(), true);
  for (const DeviceOp& op : window.ops) {
    const uint32_t call = host.issuer(op);
    if (call == kNone) continue;
    const int64_t done_ns = state_->devices.at(window.streams[op.stream].device).done_ns;
    // Graphs issue many operations by one call: pending while the last is.
    pending[call] = op.start_ns >= done_ns || op.end_ns > done_ns;
  }
  std::vector<uint8_t> issues(window.names.size(), 2);
  std::vector<bool> keep(window.calls.size());
  for (size_t i = 0; i < window.calls.size(); ++i) {
    const HostCall& c = window.calls[i];
    keep[i] = c.end_ns > settled_ns;
    if (keep[i] || !pending[i] || c.end_ns <= since_ns) continue;
    if (issues[c.name] == 2) {
      const CallClass kind = classify_call(window.names[c.name]);
      issues[c.name] = kind == CallClass::launch || kind == CallClass::copy;
    }
    keep[i] = issues[c.name] == 1;
  }
  return keep;
}

// Where steps are detected by the calls before an operation's own: of each thread also what lies
// between its first call that is kept and the one that issued something before, and that one.
void Analyser::keep_calls_before(const Trace& window, const HostTimeline& host, int64_t since_ns,
                                 std::vector<bool>& keep) {
  std::vector<bool> issued(window.calls.size());
  for (const DeviceOp& op : window.ops) {
    if (const uint32_t call = host.issuer(op); call != kNone) issued[call] = true;
  }
  std::vector<size_t> last(window.threads.size(), 0), from(window.threads.size(), SIZE_MAX);
  for (size_t i = 0; i < keep.size(); ++i) {
    const uint32_t thread = window.calls[i].thread;
    if (keep[i] && from[thread] == SIZE_MAX) from[thread] = last[thread];
    if (issued[i]) last[thread] = i;
  }
  for (size_t i = 0; i < keep.size(); ++i) {
    const HostCall& c = window.calls[i];
    if (i >= from[c.thread] && c.end_ns > since_ns) keep[i] = true;
  }
}

// Adds an idle segment to the budget of the remedy that takes it away, if that is not its leaf's.
void Analyser::tell_apart(const Trace& window, const HostTimeline& host, const Segment& seg,
                          Device& d) {
  if (seg.op == kNone || seg.issuer == kNone) return;
  DeviceAnalysis& r = d.result;
  const int64_t ns = seg.end_ns - seg.start_ns;
  const bool new_gap = seg.op != d.gap_op || seg.start_ns != d.gap_reach_ns;
  d.waited = (d.waited && !new_gap) || seg.leaf == Leaf::sync || seg.leaf == Leaf::blocking_copy ||
             seg.leaf == Leaf::after_sync;
  d.gap_op = seg.op;
  d.gap_reach_ns = seg.end_ns;
  if (new_gap) {
    d.gap_host_ns = 0;
    d.gap_short = {};
  }
  const uint32_t thread = window.calls[seg.issuer].thread;
  // Another thread may have issued what came before: this one waited for it until then.
  const uint32_t before = seg.op > 0 ? host.issuer(window.ops[seg.op - 1]) : kNone;
  const int64_t since = before == kNone ? INT64_MIN : window.calls[before].end_ns;
  if (in_run_of_copies(window, seg.op)) {
    r.between_copies[seg.leaf] += ns;
  } else if (seg.leaf == Leaf::host_code || seg.leaf == Leaf::after_sync) {
    const bool long_one = host.own_stretch_ns(thread, seg.start_ns, since) > kDispatchNs;
    d.gap_host_ns += ns;
    (long_one ? r.long_host : d.gap_short)[seg.leaf] += ns;
  } else if (is_host_wait(seg.leaf) || seg.leaf == Leaf::gil || seg.leaf == Leaf::runnable) {
    // A short one goes with the work that it interrupts: who does not do the work is not kept from it.
    const bool long_one = host.piece_ns(thread, seg.start_ns, since) > kDispatchNs;
    (long_one ? r.long_host : d.gap_short)[seg.leaf] += ns;
  } else if (d.waited && (seg.leaf == Leaf::launch || seg.leaf == Leaf::launch_latency)) {
    r.after_wait[seg.leaf] += ns;
  }
  if (d.gap_host_ns > kManyPiecesNs) {  // nothing was issued between them
    r.long_host += d.gap_short;
    d.gap_short = {};
  }
}

// The stretches in which threads that issue work of the device wait for it.
void Analyser::add_waits(const Trace& window, const HostTimeline& host, Device& d, int64_t to_ns) {
  std::vector<bool> issues(window.threads.size());
  for (const DeviceOp& op : window.ops) {
    if (window.streams[op.stream].device != d.result.device) continue;
    const uint32_t call = host.issuer(op);
    if (call != kNone) issues[window.calls[call].thread] = true;
  }
  for (uint32_t t = 0; t < issues.size(); ++t) {
    const bool first = window.threads[t].thread == window.threads[t].process;
    if (!issues[t] && !first) continue;
    const auto pieces = host.thread(t);
    for (size_t p = host.first_after(t, d.done_ns); p < pieces.size() && pieces[p].start_ns < to_ns;
         ++p) {
      if (pieces[p].leaf != Leaf::sync && pieces[p].leaf != Leaf::blocking_copy) continue;
      d.lines.add_wait(window, std::max(pieces[p].start_ns, d.done_ns),
                       std::min(pieces[p].end_ns, to_ns), t);
    }
  }
}

// Of the step in which it began.
void Analyser::count_kernel(int64_t start_ns) {
  State& s = *state_;
  const auto step = static_cast<size_t>(
      std::upper_bound(s.begins.begin(), s.begins.end(), start_ns) - s.begins.begin());
  if (step < 1 || step > kMaxSteps) return;
  if (s.kernels.size() < step) s.kernels.resize(step);
  ++s.kernels[step - 1];
}

void Analyser::process(const Trace& window, const HostTimeline& host, Device& d, int64_t to_ns) {
  State& s = *state_;
  if (to_ns <= d.done_ns) return;
  DeviceAnalysis& r = d.result;
  const bool bounds_steps = r.device == s.rule.device && s.rule.by != StepRule::By::nothing;
  int64_t multiprocessors = 0;
  if (const auto at = window.devices.find(r.device); at != window.devices.end())
    multiprocessors = at->second.multiprocessors;

  if (r.bucket_ns == 0)
    r.bucket_ns = std::max<int64_t>(1, (to_ns - r.from_ns) / static_cast<int64_t>(kBuckets / 2));
  while ((to_ns - r.from_ns) / r.bucket_ns >= static_cast<int64_t>(kBuckets)) {
    for (size_t i = 0; i < r.timeline.size(); ++i) {
      if (i % 2 == 0)
        r.timeline[i / 2] = r.timeline[i];
      else
        r.timeline[i / 2].budget += r.timeline[i].budget;
    }
    r.timeline.resize((r.timeline.size() + 1) / 2);
    r.bucket_ns *= 2;
  }

  const WaitsBeside beside(window);
  size_t step = 0;  // begins[step] <= time < begins[step + 1]
  attribute(window, host, r.device, d.done_ns, to_ns, [&](const Segment& seg) {
    r.budget[seg.leaf] += seg.end_ns - seg.start_ns;
    if (seg.leaf == Leaf::tiny) r.unfilled_ns += seg.end_ns - seg.start_ns;
    if (seg.leaf == Leaf::low_grid)
      r.unfilled_ns +=
          static_cast<int64_t>(static_cast<double>(seg.end_ns - seg.start_ns) * (1 - seg.filled));
    if (!is_busy(seg.leaf)) {
      NamedTime& e = d.evidence[{seg.leaf, seg.name}];
      e.ns += seg.end_ns - seg.start_ns;
      ++e.count;
      tell_apart(window, host, seg, d);
      if (seg.issuer != kNone)
        d.lines.add(window, seg.start_ns, seg.end_ns, seg.leaf, window.calls[seg.issuer].thread);
      if ((seg.leaf == Leaf::loader || seg.leaf == Leaf::blocked) &&
          seg.end_ns - seg.start_ns >= kLongWaitNs) {
        r.waited_ns += seg.end_ns - seg.start_ns;
        beside.add(seg.start_ns, seg.end_ns, d.beside);
      }
    }
    for (int64_t t = seg.start_ns; t < seg.end_ns;) {
      const int64_t i = (t - r.from_ns) / r.bucket_ns;
      const int64_t end = std::min(seg.end_ns, r.from_ns + (i + 1) * r.bucket_ns);
      if (static_cast<size_t>(i) >= r.timeline.size())
        r.timeline.resize(static_cast<size_t>(i) + 1);
      r.timeline[static_cast<size_t>(i)].budget[seg.leaf] += end - t;
      t = end;
    }
    if (!bounds_steps) return;
    for (int64_t t = seg.start_ns; t < seg.end_ns;) {
      if (step == 0)
        step = static_cast<size_t>(std::upper_bound(s.begins.begin(), s.begins.end(), t) -
                                   s.begins.begin());
      while (step < s.begins.size() && s.begins[step] <= t) ++step;
      const int64_t end =
          step < s.begins.size() ? std::min(seg.end_ns, s.begins[step]) : seg.end_ns;
      if (step >= 1 && step <= kMaxSteps) {
        if (s.budgets.size() < step) s.budgets.resize(step);
        s.budgets[step - 1][seg.leaf] += end - t;
      }
      t = end;
    }
  });

  BusyLeaves leaves(window);
  d.issued.add(window, host, r.device, d.done_ns, to_ns, leaves, multiprocessors);
  if (!window.samples.empty()) add_waits(window, host, d, to_ns);
  const KernelWork work(window, leaves);
  std::vector<bool> counted(window.calls.size());  // a graph's nodes share their call
  for (const DeviceOp& op : window.ops) {
    if (window.streams[op.stream].device != r.device) continue;
    if (op.start_ns < d.done_ns || op.start_ns >= to_ns) continue;
    ++r.ops;
    const int64_t ns = op.end_ns - op.start_ns;
    if (op.kind == OpKind::copy) {
      CopyStat& c = r.copies[{op.copy, op.memory}];
      ++c.count;
      c.bytes += op.size;
      c.total_ns += ns;
      c.small += op.size < kSmallCopy;
      c.small_ns += op.size < kSmallCopy ? ns : 0;
    }
    if (op.kind == OpKind::kernel || op.kind == OpKind::graph) {
      if (bounds_steps) count_kernel(op.start_ns);
      const uint32_t call = host.issuer(op);
      if (call != kNone && !counted[call]) {
        counted[call] = true;
        ++r.launches;
        r.launch_ns += window.calls[call].end_ns - window.calls[call].start_ns;
      }
    }
    if (op.kind == OpKind::kernel) {
      KernelStat& k = d.kernels[op.name];
      if (k.count == 0) k.name = window.names[op.name];
      ++k.count;
      k.total_ns += ns;
      k.longest_ns = std::max(k.longest_ns, ns);
      k.blocks = op.size;
      k.block_threads = op.block_threads;
      if (is_serial(k.name, op.size, ns, multiprocessors)) {
        k.serial_ns += ns;
        k.serial_blocks = op.size;
      }
      work.add(op, k);
      k.by_leaf[leaves.of(op, multiprocessors)] += ns;
    }
  }
  d.done_ns = to_ns;
}

namespace {

// What went to making code between the devices' first work and their last, but for the steps, where
// that is a tenth and more of it all.
std::string compiled_beside(const Trace& trace, int64_t first_ns, int64_t last_ns,
                            int64_t steps_from_ns, int64_t steps_to_ns) {
  const CompileTimes compiling(trace);
  const int64_t ns =
      compiling.total_ns(first_ns, steps_from_ns) + compiling.total_ns(steps_to_ns, last_ns);
  const double part = static_cast<double>(ns) / static_cast<double>(last_ns - first_ns);
  if (part < kPartCompiled) return "";
  return fmt::format(
      "outside of the steps code was traced, compiled or tuned for {:.1f} s, {:.0f}% of all of it",
      1e-9 * static_cast<double>(ns), 100 * part);
}

std::string why_nothing(const Trace& trace) {
  if (trace.source == kKinetoSource)
    return "no work of a device is in the trace; record with the CUDA activities on "
           "(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])";
  std::string cut;
  for (const std::string& note : trace.notes) {
    if (note.find("cut off at byte") != note.npos || note.starts_with("process ") ||
        note.starts_with("recording ended"))
      cut += "; " + note;
  }
  if (!cut.empty())
    return "no work of a device is in the capture, for it ended before any that was finished "
           "could be written: let the program run longer" +
           cut;
  return "no work of a device is in the capture: the program gave the GPU none while it was "
         "recorded; see --delay and --duration, and record again";
}

}  // namespace

Analysis Analyser::finish(const Trace& trace) {
  State& s = *state_;
  if (!s.begun) throw Error(Errc::invalid_argument, "doctor", why_nothing(trace));
  Analysis a;
  a.source = trace.source;
  a.framework = trace.framework;
  a.notes = trace.notes;
  a.copy_rates = trace.copy_rates;
  a.host_uses = trace.host_uses;
  a.records = s.records;
  a.dropped = trace.dropped;
  a.slowdown = a.slowdown_by_pace = trace.slowdown;
  a.shapes = trace.shapes;
  a.malformed = trace.malformed;
  for (auto& [id, d] : s.devices) {
    DeviceAnalysis& r = d.result;
    r.to_ns = d.done_ns;
    if (const auto at = trace.devices.find(id); at != trace.devices.end()) r.info = at->second;
    for (auto& [key, time] : d.evidence) {
      NamedTime& e = r.evidence[{key.first, trace.names[key.second]}];
      e.ns += time.ns;
      e.count += time.count;
    }
    for (const auto& [key, ns] : d.beside) r.beside[{key.first, trace.names[key.second]}] += ns;
    for (auto& [name, k] : d.kernels) {
      int64_t most = -1;
      for (const auto& [leaf, ns] : k.by_leaf) {
        if (ns > most) most = ns, k.leaf = leaf;
      }
      r.kernels.push_back(std::move(k));
    }
    std::sort(r.kernels.begin(), r.kernels.end(), [](const KernelStat& x, const KernelStat& y) {
      return x.total_ns != y.total_ns ? x.total_ns > y.total_ns : x.name < y.name;
    });
    if (r.memory.allocated.empty()) add_memory_before(id, r.memory);
    if (!r.memory.allocated.empty()) {  // as it was to the end
      r.memory.allocated.add(r.to_ns, r.memory.allocated.last());
      r.memory.reserved.add(r.to_ns, r.memory.reserved.last());
    }
    r.memory.by_calls = trace.memory_by_calls;
    r.memory.growth = lasting_growth(step_peaks(r.memory.allocated, s.begins));
    r.budget = {};
    for (const TimelineBucket& b : r.timeline) r.budget += b.budget;
    SAT_ASSERT(r.budget.total_ns() == r.to_ns - r.from_ns);
    r.host_lines =
        d.lines.finish(trace, r.budget, d.issued.forward(trace), d.issued.forward_calls(trace));
    r.work_lines = d.issued.work(trace);
    r.copy_lines = d.issued.copies(trace);
    r.product_lines = d.issued.products(trace);
    r.odd_product_lines = d.issued.of_names(trace, [](std::string_view name) {
      return is_float32_attention(name) || is_integer_product(name);
    });
    r.kernel_copy_lines = d.issued.of_names(trace, is_copy);
    r.softmax_lines = d.issued.of_names(trace, is_softmax);
    r.double_lines = d.issued.of_names(trace, is_double);
    r.transform_lines = d.issued.of_names(trace, is_detour_transform);
    r.sort_lines = d.issued.of_names(trace, is_sort);
    r.communication_lines = d.issued.of_names(trace, [](std::string_view name) {
      return classify_kernel(name) == KernelClass::communication;
    });
    r.device_copy_lines = d.issued.device_copies(trace);
    a.devices.push_back(std::move(r));
  }
  std::stable_sort(a.devices.begin(), a.devices.end(), [](const auto& x, const auto& y) {
    return x.budget.busy_ns() > y.budget.busy_ns();
  });

  StepAnalysis& st = a.steps;
  st.rule = s.rule.describe();
  st.device = s.rule.device;
  st.found = s.begins.size() >= 2;
  if (!st.found) return a;
  st.warm_up = static_cast<int64_t>(s.warm_up);
  std::vector<int64_t> durations;
  for (size_t i = s.warm_up; i + 1 < s.begins.size(); ++i) {
    if (!s.regular[i]) {
      ++st.irregular;
      continue;
    }
    ++st.count;
    durations.push_back(s.begins[i + 1] - s.begins[i]);
    if (i < s.budgets.size())
      st.steps.push_back(
          {s.begins[i], s.begins[i + 1], s.budgets[i], i < s.kernels.size() ? s.kernels[i] : 0});
  }
  if (durations.empty()) {
    st.found = false;
    return a;
  }
  st.drift = step_drift(durations);
  const double analysed = static_cast<double>(s.begins.back() - s.from_ns) /
                          static_cast<double>(s.last_end_ns - s.first_start_ns);
  if (analysed < kMostOfTheTime) {
    a.notes.push_back(fmt::format(
        "the report is of the steps, {:.0f}% of the time from the devices' first work to "
        "their last: what ran before or after (start-up, warm-up, another process) is "
        "not in it",
        100 * analysed));
    const std::string compiled =
        compiled_beside(trace, s.first_start_ns, s.last_end_ns, s.from_ns, s.begins.back());
    if (!compiled.empty()) a.notes.push_back(compiled);
  }
  for (const int64_t ns : durations)
    st.mean_ns += static_cast<double>(ns) / static_cast<double>(st.count);
  std::sort(durations.begin(), durations.end());
  const auto at = [&](double q) {
    return static_cast<double>(
        durations[static_cast<size_t>(q * static_cast<double>(durations.size() - 1))]);
  };
  st.stretch_ns = static_cast<double>(s.begins.back() - s.from_ns) /
                  static_cast<double>(s.begins.size() - 1 - s.warm_up);
  st.median_ns = at(0.5);
  st.p10_ns = at(0.1);
  st.p90_ns = at(0.9);
  return a;
}

Analysis analyse(Trace& trace, AnalyseOptions options) {
  Analyser analyser(options);
  analyser.consume(trace, true);
  return analyser.finish(trace);
}

}  // namespace saturate::observe
