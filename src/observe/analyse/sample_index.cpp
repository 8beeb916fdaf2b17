// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/sample_index.h"

#include <algorithm>
#include <set>

#include "observe/analyse/host_timeline.h"

namespace saturate::observe {
namespace {

// The number of points of `s` in [from, to).
int64_t points_in(const HostSample& s, int64_t from, int64_t to) {
  if (s.count <= 1 || s.end_ns <= s.start_ns)
    return s.start_ns >= from && s.start_ns < to ? s.count : 0;
  const double step = static_cast<double>(s.end_ns - s.start_ns) / (s.count - 1);
  const auto before = [&](int64_t time) {  // points that lie before
    if (time <= s.start_ns) return int64_t{0};
    if (time > s.end_ns) return static_cast<int64_t>(s.count);
    return static_cast<int64_t>(static_cast<double>(time - 1 - s.start_ns) / step) + 1;
  };
  return before(to) - before(from);
}

}  // namespace

void SampleIndex::update(const Trace& trace) {
  if (indexed_ == trace.samples.size() && threads_ == trace.threads.size()) return;
  indexed_ = trace.samples.size();
  threads_ = trace.threads.size();
  cursors_.assign(threads_, {});
  program_thread_.clear();
  workers_.clear();
  for (size_t i = 0; i < trace.samples.size(); ++i) {
    Cursor& c = cursors_[trace.samples[i].thread];
    if (c.end == 0) c.begin = c.at = i;
    c.end = i + 1;
  }
  std::vector<int64_t> calls(trace.threads.size());
  std::set<uint32_t> issuing;
  for (const HostCall& c : trace.calls) {
    ++calls[c.thread];
    issuing.insert(trace.threads[c.thread].process);
  }
  for (uint32_t t = 0; t < cursors_.size(); ++t) {
    if (cursors_[t].end == 0) continue;
    const ThreadKey& key = trace.threads[t];
    if (issuing.contains(key.process)) {
      const auto [at, fresh] = program_thread_.try_emplace(key.process, t);
      const uint32_t other = at->second;
      if (calls[t] > calls[other] ||
          (calls[t] == calls[other] && key.thread < trace.threads[other].thread))
        at->second = t;
      continue;
    }
    uint32_t process = key.process;
    for (int depth = 0; depth < 64; ++depth) {
      const auto parent = trace.parents.find(process);
      if (parent == trace.parents.end()) break;
      process = parent->second;
      if (!issuing.contains(process)) continue;
      workers_[process].push_back(t);
      break;
    }
  }
}

int64_t SampleIndex::each(const Trace& trace, uint32_t thread, int64_t start_ns, int64_t end_ns,
                          const std::function<void(const HostSample&, int64_t)>& take) {
  Cursor& c = cursors_[thread];
  if (c.at > c.begin && trace.samples[c.at - 1].end_ns >= start_ns) c.at = c.begin;  // gone back
  while (c.at < c.end && trace.samples[c.at].end_ns < start_ns) ++c.at;
  int64_t all = 0;
  for (size_t i = c.at; i < c.end && trace.samples[i].start_ns < end_ns; ++i) {
    const int64_t points = points_in(trace.samples[i], start_ns, end_ns);
    if (points == 0) continue;
    take(trace.samples[i], points);
    all += points;
  }
  return all;
}

uint32_t SampleIndex::program_thread(uint32_t process) const {
  const auto at = program_thread_.find(process);
  return at == program_thread_.end() ? kNone : at->second;
}

const std::vector<uint32_t>& SampleIndex::workers(uint32_t process) const {
  static const std::vector<uint32_t> kNobody;
  const auto at = workers_.find(process);
  return at == workers_.end() ? kNobody : at->second;
}

}  // namespace saturate::observe
