// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/pauses.h"

#include <algorithm>

namespace saturate::observe {

size_t PausedClock::first_after(int64_t time_ns) const {
  return static_cast<size_t>(
      std::partition_point(pauses_.begin(), pauses_.end(),
                           [&](const Pause& p) { return p.end_ns <= time_ns; }) -
      pauses_.begin());
}

void PausedClock::add(Pause pause) {
  if (pause.end_ns <= pause.start_ns) return;
  const size_t from = first_after(pause.start_ns - 1);
  size_t to = from;
  for (; to < pauses_.size() && pauses_[to].start_ns <= pause.end_ns; ++to) {
    pause.start_ns = std::min(pause.start_ns, pauses_[to].start_ns);
    pause.end_ns = std::max(pause.end_ns, pauses_[to].end_ns);
  }
  const auto at = [&](size_t i) { return pauses_.begin() + static_cast<std::ptrdiff_t>(i); };
  pauses_.insert(pauses_.erase(at(from), at(to)), pause);
  before_.resize(pauses_.size());
  for (size_t i = from; i < pauses_.size(); ++i)
    before_[i] = i == 0 ? 0 : before_[i - 1] + length(pauses_[i - 1]);
}

bool PausedClock::paused(int64_t time_ns) const {
  const size_t i = first_after(time_ns);
  return i < pauses_.size() && pauses_[i].start_ns <= time_ns;
}

int64_t PausedClock::at(int64_t time_ns) const {
  if (pauses_.empty()) return time_ns;
  const size_t i = first_after(time_ns);
  if (i == pauses_.size()) return time_ns - paused_ns();
  return std::min(time_ns, pauses_[i].start_ns) - before_[i];
}

}  // namespace saturate::observe
