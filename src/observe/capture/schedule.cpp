// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/schedule.h"

#include <algorithm>

namespace saturate::observe::cupti {

Mode Schedule::mode_at(int64_t now_ns) const {
  if (now_ns < start_ns_ || now_ns >= stop_ns_) return Mode::off;
  if (period_ns_ == 0) return Mode::full;
  const int64_t phase = now_ns % period_ns_;
  if (phase < window_ns_) return Mode::full;
  return phase >= period_ns_ - light_ns() ? Mode::light : Mode::off;
}

int64_t Schedule::next_change(int64_t now_ns) const {
  if (now_ns < start_ns_) return start_ns_;
  if (now_ns >= stop_ns_) return INT64_MAX;
  if (period_ns_ == 0) return std::min(stop_ns_, now_ns + kWindowNs);
  const int64_t phase = now_ns % period_ns_, begin = now_ns - phase;
  const int64_t next = phase < window_ns_                ? begin + window_ns_
                       : phase < period_ns_ - light_ns() ? begin + period_ns_ - light_ns()
                                                         : begin + period_ns_;
  return std::min(stop_ns_, next);
}

int64_t Schedule::window_launches(double launches_per_s) {
  return kAim - kStayingCostS * launches_per_s < kBudget ? kWindowLaunches / 2 : kWindowLaunches;
}

bool Schedule::enough(int64_t stretch_ns, int64_t launches) const {
  const double per_s =
      1e9 * static_cast<double>(launches) / static_cast<double>(std::max<int64_t>(1, stretch_ns));
  const bool many = stretch_ns >= kLeastWindowNs && launches >= window_launches(per_s);
  return stretch_ns >= (period_ns_ == 0 ? kWindowNs : window_ns_) || many;
}

void Schedule::update(int64_t cost_ns, int64_t launches, int64_t stretch_ns,
                      int64_t total_records) {
  if (stretch_ns <= 0) return;
  const double cost = static_cast<double>(cost_ns) / static_cast<double>(stretch_ns);
  const double per_s = 1e9 * static_cast<double>(launches) / static_cast<double>(stretch_ns);
  const double full_share = cost > 0 ? kBudget / cost : 2.0;
  int64_t least = 0;
  if (period_ns_ > 0) ++windows_;
  window_ns_ = kWindowNs;
  if (full_share < (period_ns_ == 0 ? 1.0 : 1.5)) {
    if (per_s > 0)
      window_ns_ = std::clamp(
          static_cast<int64_t>(1e9 * static_cast<double>(window_launches(per_s)) / per_s),
          kLeastWindowNs, kWindowNs);
    const double budget = windows_ < kFirstWindows
                              ? std::clamp(kAim - kStayingCostS * per_s, kLeastBudget, kBudget)
                              : kLongBudget;
    least = static_cast<int64_t>(static_cast<double>(window_ns_) * cost / budget);
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
