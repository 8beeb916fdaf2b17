// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace saturate::observe::cupti {

enum class Mode : uint8_t {
  off,    // nothing is kept
  light,  // calls are counted, to see how fast the program is without records of the device
  full,
};

// When to record, so that the watched program loses little of its time.
//
// Where recording costs less than kBudget of the time it goes on all the time. Where it is more,
// windows are recorded, at times that are multiples of a period: a power of two of seconds, so that
// the processes of one program, which share the clock, record at the same times though each decides
// for itself. The light mode comes just before each window: neighbours see the same program. After
// kFirstWindows of them the program is known, and kLongBudget is enough: a long run is a sample.
// When many records have piled up, the period doubles with their number, so that a capture of any
// length stays readable.
//
// The rate of launches decides how long a window is, the first one too: kWindowLaunches of them,
// kWindowNs at most. And it decides the budget: what CUPTI leaves in each launch, whether recorded
// or not, is taken off kAim, but for kLeastBudget. Where that leaves nothing of kAim no schedule
// keeps to it, and the capture says so.
class Schedule {
 public:
  static constexpr int64_t kWindowNs = 1'000'000'000, kLeastWindowNs = 250'000'000;
  // Of a window; half as many where what stays leaves less than kBudget of kAim.
  static constexpr int64_t kWindowLaunches = 40'000;
  static constexpr int64_t kMostPeriodNs = 64'000'000'000, kRecordsBeforeThinning = 3'000'000;
  static constexpr double kBudget = 0.015, kLongBudget = 0.004, kLeastBudget = 0.004;
  static constexpr double kAim = 0.05;  // of the whole run
  // Once CUPTI was asked to record the device each launch costs this much more, whether it is
  // recorded or not: of PyTorch on an H200, 0.4 us of plain C++ (docs/measurements.md).
  static constexpr double kStayingCostS = 0.7e-6;
  static constexpr int kFirstWindows = 6;

  // Times on the capture's clock; `stop_ns`: INT64_MAX for the program's end.
  Schedule(int64_t start_ns, int64_t stop_ns) : start_ns_(start_ns), stop_ns_(stop_ns) {}

  Mode mode_at(int64_t now_ns) const;
  // The next time after `now_ns` when mode_at() may differ or update() wants to be called.
  int64_t next_change(int64_t now_ns) const;
  // Whether a stretch of full recording that goes on has seen enough for update().
  bool enough(int64_t stretch_ns, int64_t launches) const;
  // What recording cost in a stretch of full recording, a window if there are any, and how many
  // launches were in it: decides the windows from here on. `total_records` since the start.
  void update(int64_t cost_ns, int64_t launches, int64_t stretch_ns, int64_t total_records);
  int64_t period_ns() const { return period_ns_; }  // 0: all the time
  int64_t window_ns() const { return window_ns_; }
  int64_t light_ns() const { return window_ns_ / 2; }

 private:
  static int64_t window_launches(double launches_per_s);

  int64_t start_ns_, stop_ns_;
  int64_t period_ns_ = 0, window_ns_ = kWindowNs;
  int windows_ = 0;  // recorded so far
};

}  // namespace saturate::observe::cupti
