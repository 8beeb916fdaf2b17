// SPDX-License-Identifier: Apache-2.0
#include "observe/read/number_by_order.h"

#include <algorithm>
#include <map>
#include <vector>

namespace saturate::observe {
namespace {

constexpr int64_t kFirstNumber = int64_t{1} << 40;  // CUPTI's have 32 bits

struct Process {
  std::vector<int64_t> fences;  // when waits for the device ended
  std::vector<HostCall*> launches;
  std::vector<DeviceOp*> kernels;
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// The part of `sorted` that starts in [from, to).
template <class Record>
std::pair<size_t, size_t> between(const std::vector<Record*>& sorted, int64_t from, int64_t to) {
  const auto at = [&](int64_t time) {
    return static_cast<size_t>(
        std::partition_point(sorted.begin(), sorted.end(),
                             [&](const Record* r) { return r->start_ns < time; }) -
        sorted.begin());
  };
  return {at(from), at(to)};
}

}  // namespace

void number_by_order(Trace& trace) {
  std::map<uint32_t, Process> processes;
  for (DeviceOp& op : trace.ops) {
    if (op.kind == OpKind::kernel && op.correlation == kNoCorrelation)
      processes[trace.streams[op.stream].process].kernels.push_back(&op);
  }
  if (processes.empty()) return;
  for (HostCall& call : trace.calls) {
    const auto at = processes.find(trace.threads[call.thread].process);
    if (at == processes.end()) continue;
    const std::string& name = trace.names[call.name];
    if (contains(name, "Synchronize")) at->second.fences.push_back(call.end_ns);
    if (call.correlation == kNoCorrelation && contains(name, "Launch") &&
        !contains(name, "GraphLaunch"))
      at->second.launches.push_back(&call);
  }
  int64_t number = kFirstNumber;
  for (auto& [id, p] : processes) {
    std::sort(p.fences.begin(), p.fences.end());
    for (size_t f = 0; f + 1 < p.fences.size(); ++f) {
      const auto [call, call_end] = between(p.launches, p.fences[f], p.fences[f + 1]);
      const auto [op, op_end] = between(p.kernels, p.fences[f], p.fences[f + 1]);
      bool sure = op_end - op == call_end - call;
      for (size_t i = 0; sure && op + i < op_end; ++i)
        sure = p.kernels[op + i]->stream == p.kernels[op]->stream &&
               p.kernels[op + i]->start_ns >= p.launches[call + i]->start_ns;
      for (size_t i = 0; sure && op + i < op_end; ++i)
        p.kernels[op + i]->correlation = p.launches[call + i]->correlation = number++;
    }
  }
}

}  // namespace saturate::observe
