// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/waits_beside.h"

#include <algorithm>

namespace saturate::observe {
namespace {

constexpr int64_t kLateNs = 150'000'000;  // samples, and batches that wait in queues

}  // namespace

WaitsBeside::WaitsBeside(const Trace& trace) {
  std::vector<bool> issues(trace.threads.size());
  for (const HostCall& call : trace.calls) issues[call.thread] = true;
  for (const HostSpan& s : trace.spans)
    if (is_host_wait(s.kind) && s.kind != SpanKind::blocked && !issues[s.thread])
      waits_[{s.kind, s.name}].push_back({s.end_ns, s.start_ns});
  for (auto& [key, waits] : waits_) std::sort(waits.begin(), waits.end());
}

void WaitsBeside::add(int64_t from_ns, int64_t to_ns, Sums& sums) const {
  for (const auto& [key, waits] : waits_) {
    auto at = std::partition_point(waits.begin(), waits.end(),
                                   [&](const Wait& w) { return w.end_ns <= to_ns + kLateNs; });
    int64_t covered = 0, low = to_ns;  // what lies above is counted
    while (at != waits.begin() && (--at)->end_ns > from_ns) {
      covered += std::max<int64_t>(0, std::min(at->end_ns, low) - std::max(at->start_ns, from_ns));
      low = std::max(from_ns, std::min(low, at->start_ns));
    }
    if (covered > 0) sums[key] += covered;
  }
}

}  // namespace saturate::observe
