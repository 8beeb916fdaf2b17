// SPDX-License-Identifier: Apache-2.0
#include "observe/read/device_waits.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <vector>

namespace saturate::observe {
namespace {

constexpr int64_t kQuietNs = 200'000;  // without a call while the device works: a wait, perhaps
// From the end of the work to the next call. A host that the device does not hold up calls within
// that of an end once in some dozen times, or always, where its own work takes as long as the
// device's: so its stacks must show it asleep, or the answer come faster.
constexpr int64_t kAnswerNs = 1'000'000, kFastAnswerNs = 300'000;
constexpr int64_t kOften = 8;
constexpr int64_t kEnoughSamples = 5;
constexpr double kAsleep = 0.8;
constexpr int64_t kValueBytes = 64 << 10;
constexpr int64_t kReturnNs = 1'000;  // a wait is over after the work is, or it had not been on

struct Quiet {
  int64_t from_ns, end_ns;  // of the last call before, and of the wait
  int64_t answer_ns;        // from the end of the work to the next call
};
struct Process {
  std::vector<const HostCall*> calls;
  std::vector<const DeviceOp*> ops;
  std::unordered_map<int64_t, int64_t> issued_ns;  // by correlation
};

// Where the device has done all that it was given and the program has called nothing meanwhile.
std::vector<Quiet> quiet_ends(const Process& of) {
  std::vector<Quiet> quiet;
  int64_t work_end = INT64_MIN, calls_end = INT64_MIN;
  size_t next_call = 0;
  for (const DeviceOp* op : of.ops) {
    const auto issued = of.issued_ns.find(op->correlation);
    const bool later = issued != of.issued_ns.end() && issued->second >= work_end;
    if (work_end != INT64_MIN && op->start_ns > work_end && later) {
      for (; next_call < of.calls.size() && of.calls[next_call]->start_ns < work_end; ++next_call)
        calls_end = std::max(calls_end, of.calls[next_call]->end_ns);
      if (calls_end != INT64_MIN && work_end - calls_end >= kQuietNs &&
          next_call < of.calls.size()) {
        const HostCall& answer = *of.calls[next_call];
        Quiet wait{calls_end, work_end + kReturnNs, answer.start_ns - work_end};
        if (op->copy == CopyKind::device_to_host && op->size < kValueBytes &&
            op->correlation == answer.correlation)
          wait.end_ns = op->end_ns + kReturnNs;
        quiet.push_back(wait);
      }
    }
    work_end = std::max(work_end, op->end_ns);
  }
  return quiet;
}

// Of the points of the thread's samples in these stretches, which are in order.
struct Seen {
  int64_t samples = 0, asleep = 0;
};
Seen seen_in(const Trace& trace, uint32_t thread, const std::vector<Quiet>& quiet) {
  Seen seen;
  for (const HostSample& s : trace.samples) {
    if (s.thread != thread) continue;
    for (uint32_t i = 0; i < s.count; ++i) {
      const int64_t time =
          s.count < 2 ? s.start_ns : s.start_ns + (s.end_ns - s.start_ns) / (s.count - 1) * i;
      const auto at = std::partition_point(quiet.begin(), quiet.end(),
                                           [&](const Quiet& q) { return q.end_ns <= time; });
      if (at == quiet.end() || at->from_ns > time) continue;
      ++seen.samples;
      seen.asleep += s.state != HostState::running;
    }
  }
  return seen;
}

std::vector<Quiet> waits_of(const Trace& trace, uint32_t process, const Process& of) {
  std::vector<Quiet> quiet = quiet_ends(of);
  uint32_t first = UINT32_MAX;  // thread
  for (uint32_t t = 0; t < trace.threads.size(); ++t)
    if (trace.threads[t].process == process && trace.threads[t].thread == process) first = t;
  const Seen seen = first == UINT32_MAX ? Seen{} : seen_in(trace, first, quiet);
  const bool known = seen.samples >= kEnoughSamples;
  if (known && static_cast<double>(seen.asleep) < kAsleep * static_cast<double>(seen.samples))
    return {};
  const int64_t all = static_cast<int64_t>(quiet.size());
  std::erase_if(quiet,
                [&](const Quiet& q) { return q.answer_ns > (known ? kAnswerNs : kFastAnswerNs); });
  const auto answered = static_cast<int64_t>(quiet.size());
  if (answered < kOften || 2 * answered < all) return {};
  return quiet;
}

}  // namespace

void add_device_waits(Trace& trace) {
  std::map<uint32_t, Process> processes;
  std::map<uint32_t, std::vector<int64_t>> starts;  // of calls, by thread
  for (const HostCall& call : trace.calls) {
    Process& of = processes[trace.threads[call.thread].process];
    of.calls.push_back(&call);
    if (call.correlation != kNoCorrelation)
      of.issued_ns.try_emplace(call.correlation, call.start_ns);
    starts[call.thread].push_back(call.start_ns);
  }
  for (const DeviceOp& op : trace.ops)
    processes[trace.streams[op.stream].process].ops.push_back(&op);
  std::vector<HostCall> added;
  const uint32_t name = trace.names.add(kDeviceWait);
  for (const auto& [process, of] : processes) {
    const std::vector<Quiet> waits = waits_of(trace, process, of);
    for (uint32_t t = 0; !waits.empty() && t < trace.threads.size(); ++t) {
      const ThreadKey& key = trace.threads[t];
      if (key.process != process || (!starts.contains(t) && key.thread != process)) continue;
      const std::vector<int64_t>& own = starts[t];
      for (const Quiet& wait : waits) {
        const auto next = std::upper_bound(own.begin(), own.end(), wait.from_ns);
        const int64_t end = next == own.end() ? wait.end_ns : std::min(wait.end_ns, *next);
        if (end - wait.from_ns < kQuietNs) continue;
        HostCall call;
        call.start_ns = wait.from_ns;
        call.end_ns = end;
        call.name = name;
        call.thread = t;
        added.push_back(call);
      }
    }
  }
  if (added.empty()) return;
  trace.calls.insert(trace.calls.end(), added.begin(), added.end());
  trace.sort();
}

}  // namespace saturate::observe
