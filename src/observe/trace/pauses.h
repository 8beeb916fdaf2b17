// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace saturate::observe {

// A time in which nothing was recorded, on purpose: half open.
struct Pause {
  int64_t start_ns, end_ns;
  bool operator==(const Pause&) const = default;
};

// A clock that stands still in pauses, so that what was recorded in windows reads as one stretch.
class PausedClock {
 public:
  // In any order; they may overlap. Pauses that end before they start are passed over.
  void add(Pause pause);
  // The time that has run by `time_ns` on the clock that stands still.
  int64_t at(int64_t time_ns) const;
  bool paused(int64_t time_ns) const;
  bool empty() const { return pauses_.empty(); }
  const std::vector<Pause>& pauses() const { return pauses_; }  // disjoint, in order
  int64_t paused_ns() const {
    return pauses_.empty() ? 0 : before_.back() + length(pauses_.back());
  }

  // Moves a record onto this clock. False when it started in a pause, and so is incomplete.
  template <class Record>
  bool move(Record& r) const {
    if (pauses_.empty()) return true;
    const bool whole = !paused(r.start_ns);
    r.start_ns = at(r.start_ns);
    r.end_ns = at(r.end_ns);
    return whole;
  }

 private:
  static int64_t length(const Pause& p) { return p.end_ns - p.start_ns; }
  size_t first_after(int64_t time_ns) const;
  std::vector<Pause> pauses_;    // disjoint, in order
  std::vector<int64_t> before_;  // paused time before each
};

}  // namespace saturate::observe
