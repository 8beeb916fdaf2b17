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
// windows of kWindowNs are recorded, at times that are multiples of a period: a power of two of
// seconds, so that the processes of one program, which share the clock, record at the same times
// though each decides for itself. The light mode comes just before each window: neighbours see the
// same program. After kFirstWindows of them the program is known, and kLongBudget is enough: a long
// run is a sample. When many records have piled up, the period doubles with their number, so that a
// capture of any length stays readable.
class Schedule {
 public:
  static constexpr int64_t kWindowNs = 1'000'000'000, kLightNs = 500'000'000;
  static constexpr int64_t kMostPeriodNs = 64'000'000'000, kRecordsBeforeThinning = 3'000'000;
  static constexpr double kBudget = 0.015, kLongBudget = 0.004;
  static constexpr int kFirstWindows = 6;

  // Times on the capture's clock; `stop_ns`: INT64_MAX for the program's end.
  Schedule(int64_t start_ns, int64_t stop_ns) : start_ns_(start_ns), stop_ns_(stop_ns) {}

  Mode mode_at(int64_t now_ns) const;
  // The next time after `now_ns` when mode_at() may differ or update() wants to be called.
  int64_t next_change(int64_t now_ns) const;
  // What recording cost in a stretch of full recording, a window if there are any: decides the
  // period from here on. `total_records` since the start.
  void update(int64_t cost_ns, int64_t stretch_ns, int64_t total_records);
  int64_t period_ns() const { return period_ns_; }  // 0: all the time

 private:
  int64_t start_ns_, stop_ns_;
  int64_t period_ns_ = 0;
  int windows_ = 0;  // recorded so far
};

}  // namespace saturate::observe::cupti
