// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/compile_times.h"

#include <algorithm>

#include "observe/analyse/stack_kinds.h"

namespace saturate::observe {
namespace {

constexpr int64_t kApartNs = 100'000'000;  // samples: what lies between is not known
constexpr int64_t kHalfWayNs = 10'000'000;

}  // namespace

CompileTimes::CompileTimes(const Trace& trace) {
  if (trace.samples.empty()) return;
  const StackKinds kinds(trace);
  std::map<uint32_t, bool> issues;
  for (const HostCall& c : trace.calls) issues[trace.threads[c.thread].process] = true;
  const std::vector<HostSample>& all = trace.samples;
  for (size_t i = 0; i < all.size(); ++i) {
    const HostSample& s = all[i];
    if (!kinds.compiles(s.stack)) continue;
    const uint32_t process = trace.threads[s.thread].process;
    if (!issues.contains(process)) continue;
    const auto half = [](int64_t distance) { return std::min(distance / 2, kHalfWayNs); };
    int64_t from = s.start_ns, to = s.end_ns;
    if (i > 0 && all[i - 1].thread == s.thread) from -= half(s.start_ns - all[i - 1].end_ns);
    if (i + 1 < all.size() && all[i + 1].thread == s.thread) {
      const int64_t distance = all[i + 1].start_ns - s.end_ns;
      const bool goes_on = kinds.compiles(all[i + 1].stack) && distance < kApartNs;
      to += goes_on ? distance : half(distance);
      between_[process].emplace_back(s.start_ns, goes_on ? all[i + 1].start_ns : s.end_ns);
    }
    times_[process].emplace_back(from, to);
  }
  join(times_);
  join(between_);
}

void CompileTimes::join(Times& all) {
  for (auto& [process, times] : all) {
    std::sort(times.begin(), times.end());
    std::vector<std::pair<int64_t, int64_t>> joined;
    for (const auto& time : times) {
      if (joined.empty() || time.first > joined.back().second)
        joined.push_back(time);
      else
        joined.back().second = std::max(joined.back().second, time.second);
    }
    times = std::move(joined);
  }
}

bool CompileTimes::at(uint32_t process, int64_t from_ns, int64_t to_ns) const {
  const auto of = times_.find(process);
  if (of == times_.end()) return false;
  const auto& times = of->second;
  auto at = std::partition_point(times.begin(), times.end(),
                                 [&](const auto& t) { return t.second <= from_ns; });
  int64_t inside = 0;
  for (auto t = at; t != times.end() && t->first < to_ns; ++t)
    inside += std::min(t->second, to_ns) - std::max(t->first, from_ns);
  return 2 * inside > to_ns - from_ns;
}

int64_t CompileTimes::total_ns(int64_t from_ns, int64_t to_ns) const {
  int64_t most = 0;
  for (const auto& [process, times] : times_) {
    int64_t sum = 0;
    for (const auto& [start, end] : times)
      sum += std::max<int64_t>(0, std::min(end, to_ns) - std::max(start, from_ns));
    most = std::max(most, sum);
  }
  return most;
}

int64_t CompileTimes::last_ns() const {
  int64_t last = INT64_MIN;
  for (const auto& [process, times] : times_)
    if (!times.empty()) last = std::max(last, times.back().second);
  return last;
}

bool CompileTimes::within(uint32_t process, int64_t time_ns) const {
  const auto of = between_.find(process);
  if (of == between_.end()) return false;
  const auto at = std::partition_point(of->second.begin(), of->second.end(),
                                       [&](const auto& t) { return t.second <= time_ns; });
  return at != of->second.end() && at->first <= time_ns;
}

}  // namespace saturate::observe
