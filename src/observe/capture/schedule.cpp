// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/schedule.h"

#include <algorithm>

namespace saturate::observe::cupti {

Mode Schedule::mode_at(int64_t now_ns) const {
  if (now_ns < start_ns_ || now_ns >= stop_ns_) return Mode::off;
  if (period_ns_ == 0) return Mode::full;
  const int64_t phase = now_ns % period_ns_;
  if (phase < kWindowNs) return Mode::full;
  return phase >= period_ns_ - kLightNs ? Mode::light : Mode::off;
}

int64_t Schedule::next_change(int64_t now_ns) const {
  if (now_ns < start_ns_) return start_ns_;
  if (now_ns >= stop_ns_) return INT64_MAX;
  if (period_ns_ == 0) return std::min(stop_ns_, now_ns + kWindowNs);
  const int64_t phase = now_ns % period_ns_, begin = now_ns - phase;
  const int64_t next = phase < kWindowNs               ? begin + kWindowNs
                       : phase < period_ns_ - kLightNs ? begin + period_ns_ - kLightNs
                                                       : begin + period_ns_;
  return std::min(stop_ns_, next);
}

void Schedule::update(int64_t cost_ns, int64_t stretch_ns, int64_t total_records) {
  if (stretch_ns <= 0) return;
  const double cost = static_cast<double>(cost_ns) / static_cast<double>(stretch_ns);
  const double full_share = cost > 0 ? kBudget / cost : 2.0;
  int64_t least = 0;
  if (period_ns_ > 0) ++windows_;
  if (full_share < (period_ns_ == 0 ? 1.0 : 1.5)) {
    const double budget = windows_ < kFirstWindows ? kBudget : kLongBudget;
    least = static_cast<int64_t>(static_cast<double>(kWindowNs) * cost / budget);
  }
  for (int64_t limit = kRecordsBeforeThinning, thin = 4 * kWindowNs; total_records > limit;
       limit *= 2, thin *= 2)
    least = std::max(least, thin);
  if (least == 0) {
    period_ns_ = 0;
    return;
  }
  period_ns_ = 2 * kWindowNs;
  while (period_ns_ < std::min(least, kMostPeriodNs)) period_ns_ *= 2;
}

}  // namespace saturate::observe::cupti
