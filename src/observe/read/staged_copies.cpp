// SPDX-License-Identifier: Apache-2.0
#include "observe/read/staged_copies.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "observe/trace/code_owner.h"

namespace saturate::observe {
namespace {

constexpr int64_t kLargeBytes = 1 << 20;
constexpr int64_t kStageNs = 1'000'000;   // shorter stretches are not worth a name
constexpr int64_t kTogetherNs = 200'000;  // calls of one hand-over
constexpr size_t kOften = 8;
constexpr int64_t kEnoughSamples = 5;
constexpr double kAsleep = 0.8;

struct Stage {
  int64_t start_ns, end_ns;
  uint32_t thread;
};

// Whether a stack's innermost function of Python is one of its own library: a queue, a lock.
bool in_library_of_python(const Trace& trace, uint32_t stack) {
  const auto file = [&] { return trace.names[trace.stacks[stack].file]; };
  while (stack != kNoStack && is_native_file(file())) stack = trace.stacks[stack].caller;
  return stack != kNoStack && owner_of(file()) == CodeOwner::python;
}

// Whether the first thread of the process sleeps through these stretches, which are in order.
bool program_sleeps(const Trace& trace, uint32_t process, const std::vector<Stage>& stages) {
  int64_t points = 0, asleep = 0;
  for (const HostSample& s : trace.samples) {
    const ThreadKey& key = trace.threads[s.thread];
    if (key.process != process || key.thread != process) continue;
    const bool sleeps = s.state == HostState::blocked &&
                        trace.names[s.wait].find("futex") != std::string::npos &&
                        !in_library_of_python(trace, s.stack);
    for (uint32_t i = 0; i < s.count; ++i) {
      const int64_t time =
          s.count < 2 ? s.start_ns : s.start_ns + (s.end_ns - s.start_ns) / (s.count - 1) * i;
      const auto at = std::partition_point(stages.begin(), stages.end(),
                                           [&](const Stage& x) { return x.end_ns <= time; });
      if (at == stages.end() || at->start_ns > time) continue;
      ++points;
      asleep += sleeps ? 1 : 0;
    }
  }
  return points >= kEnoughSamples &&
         static_cast<double>(asleep) >= kAsleep * static_cast<double>(points);
}

}  // namespace

void add_staged_copies(Trace& trace) {
  if (trace.samples.empty()) return;
  std::unordered_map<int64_t, size_t> call_of;  // by correlation
  for (size_t i = 0; i < trace.calls.size(); ++i)
    if (trace.calls[i].correlation != kNoCorrelation)
      call_of.try_emplace(trace.calls[i].correlation, i);
  std::vector<bool> computes(trace.threads.size());
  std::vector<std::vector<size_t>> copies(trace.threads.size());  // calls
  for (const DeviceOp& op : trace.ops) {
    const auto at = call_of.find(op.correlation);
    if (at == call_of.end()) continue;
    const uint32_t thread = trace.calls[at->second].thread;
    if (op.kind == OpKind::kernel || op.kind == OpKind::graph) computes[thread] = true;
    if (op.copy == CopyKind::host_to_device && op.size >= kLargeBytes)
      copies[thread].push_back(at->second);
  }
  std::map<uint32_t, std::vector<size_t>> by_process;
  for (uint32_t t = 0; t < copies.size(); ++t)
    if (!computes[t])
      for (const size_t call : copies[t]) by_process[trace.threads[t].process].push_back(call);

  std::vector<HostCall> added;
  for (auto& [process, calls] : by_process) {
    std::sort(calls.begin(), calls.end());
    calls.erase(std::unique(calls.begin(), calls.end()), calls.end());  // one may send several
    if (calls.size() < kOften) continue;
    std::vector<Stage> stages;
    size_t next = 0;
    int64_t reach = INT64_MIN, first_together = INT64_MIN, reach_before = INT64_MIN;
    uint32_t thread = UINT32_MAX;  // of the hand-over
    for (size_t i = 0; i < trace.calls.size() && next < calls.size(); ++i) {
      const HostCall& c = trace.calls[i];
      if (trace.threads[c.thread].process != process) continue;
      if (c.thread != thread || c.start_ns - reach > kTogetherNs) {
        first_together = c.start_ns;
        reach_before = reach;
        thread = c.thread;
      }
      if (i == calls[next]) {
        ++next;
        if (reach_before != INT64_MIN && first_together - reach_before >= kStageNs) {
          stages.push_back({reach_before, first_together, c.thread});
          reach_before = first_together;  // once
        }
      }
      reach = std::max(reach, c.end_ns);
    }
    if (stages.size() < kOften || !program_sleeps(trace, process, stages)) continue;
    const uint32_t name = trace.names.add(kStagedCopy);
    for (const Stage& stage : stages) {
      HostCall call;
      call.start_ns = stage.start_ns;
      call.end_ns = stage.end_ns;
      call.name = name;
      call.thread = stage.thread;
      added.push_back(call);
    }
  }
  if (added.empty()) return;
  trace.calls.insert(trace.calls.end(), added.begin(), added.end());
  trace.sort();
}

}  // namespace saturate::observe
