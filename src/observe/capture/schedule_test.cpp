// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/schedule.h"

#include <gtest/gtest.h>

namespace saturate::observe::cupti {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kCostNs = 2'000;  // of a launch

// After a second at this rate of launches.
void update(Schedule& s, int64_t rate, int64_t records = 1000) {
  s.update(rate * kCostNs, rate, kSecond, records);
}

// How long each mode is on in `seconds`, following next_change() as the recorder does.
struct Shares {
  int64_t off = 0, light = 0, full = 0;
};
Shares follow(const Schedule& s, int64_t from, int64_t seconds) {
  Shares shares;
  for (int64_t t = from; t < from + seconds * kSecond;) {
    const int64_t next = std::min(s.next_change(t), from + seconds * kSecond);
    EXPECT_GT(next, t);
    EXPECT_EQ(s.mode_at(t), s.mode_at(next - 1)) << t;
    const Mode mode = s.mode_at(t);
    (mode == Mode::off ? shares.off : mode == Mode::light ? shares.light : shares.full) += next - t;
    t = next;
  }
  return shares;
}

TEST(Schedule, CheapProgramsAreRecordedAllTheTime) {
  Schedule s(5 * kSecond, INT64_MAX);
  EXPECT_EQ(s.mode_at(4 * kSecond), Mode::off);
  EXPECT_EQ(s.next_change(4 * kSecond), 5 * kSecond);
  update(s, 3'000, 6'000);
  EXPECT_EQ(s.period_ns(), 0);
  EXPECT_EQ(follow(s, 5 * kSecond, 100).full, 100 * kSecond);
}

TEST(Schedule, DearOnesInWindowsWithinTheBudget) {
  for (const int64_t rate : {10'000, 30'000, 100'000, 300'000}) {
    Schedule s(0, INT64_MAX);
    update(s, rate);
    ASSERT_GT(s.period_ns(), 0) << rate;
    const Shares shares = follow(s, 64 * kSecond, 640);
    const double cost = 1e-9 * kCostNs * static_cast<double>(rate) *
                        static_cast<double>(shares.full) / (640.0 * kSecond);
    EXPECT_LE(cost, rate > 200'000 ? 0.02 : 1.01 * Schedule::kBudget) << rate;
    EXPECT_GE(cost, Schedule::kLeastBudget / 2) << rate;
    EXPECT_GT(shares.light, 0);
    EXPECT_LT(shares.light, shares.full);
  }
}

// The whole run of a launch-bound program, as the recorder goes through it: what recording costs it
// beside what CUPTI leaves in each launch.
TEST(Schedule, LongRunsAreASample) {
  for (const int64_t rate : {10'000, 60'000, 150'000}) {
    Schedule s(0, INT64_MAX);
    int64_t full = 0, windows = 0;
    const auto cost_until = [&](int64_t end, int64_t t) {
      for (; t < end;) {
        const int64_t next = std::min(s.next_change(t), t + kSecond);
        if (s.mode_at(t) == Mode::full) {
          full += next - t;
          ++windows;
          update(s, rate);
        }
        t = next;
      }
      return 1e-9 * kCostNs * static_cast<double>(rate) * static_cast<double>(full) /
             static_cast<double>(end);
    };
    const double minutes = cost_until(120 * kSecond, 0);
    EXPECT_LE(minutes, 0.025) << rate;
    EXPECT_GE(windows, 3) << rate;
    EXPECT_LE(cost_until(3600 * kSecond, 120 * kSecond), 0.0065) << rate;
    EXPECT_GE(windows, 50) << rate;  // of a second each
  }
}

// A program that launches at one rate, with the recorder's turns of a tenth of a second: what watching
// costs all of it, recording and what stays, of runs of several lengths.
TEST(Schedule, WholeRunsKeepToTheAimWhereThatCanBe) {
  for (const int64_t rate : {5'000, 20'000, 50'000, 57'000, 65'000, 70'000, 155'000}) {
    const double stays = Schedule::kStayingCostS * static_cast<double>(rate);
    for (const int64_t seconds : {2, 7, 20, 60, 600}) {
      Schedule s(0, INT64_MAX);
      const int64_t start = 1'000'003 * kSecond + 7;
      int64_t full = 0, from = start, windows = 0;
      for (int64_t t = start; t < start + seconds * kSecond;) {
        const int64_t next =
            std::min({s.next_change(t), t + kSecond / 10, start + seconds * kSecond});
        const bool on = s.mode_at(t) == Mode::full;
        if (on) full += next - t;
        const int64_t length = next - from, launches = length * rate / kSecond;
        if (on && (s.mode_at(next) != Mode::full || s.enough(length, launches))) {
          s.update(launches * kCostNs, launches, length, 1000);
          ++windows;
          from = next;
        }
        if (!on) from = next;
        t = next;
      }
      const double recorded = static_cast<double>(full) / static_cast<double>(seconds * kSecond) *
                              (1e-9 * kCostNs - Schedule::kStayingCostS) *
                              static_cast<double>(rate);
      EXPECT_GE(windows, 1);
      EXPECT_LE(stays + recorded, stays < 0.03 ? 0.05 : stays + (seconds < 7 ? 0.035 : 0.02))
          << rate << " a second for " << seconds << " s";
      if (rate <= 65'000 && seconds >= 7) {
        EXPECT_LE(stays + recorded, rate <= 50'000 ? 0.05 : 0.052) << rate << ", " << seconds;
      }
    }
  }
}

TEST(Schedule, FastLaunchesMakeShortWindows) {
  Schedule s(0, INT64_MAX);
  EXPECT_FALSE(s.enough(kSecond / 5, 100'000));
  EXPECT_TRUE(s.enough(kSecond / 3, 50'000));
  EXPECT_FALSE(s.enough(kSecond / 3, 5'000));
  update(s, 45'000);
  EXPECT_NEAR(static_cast<double>(s.window_ns()), 40e9 / 45, 1e6);
  update(s, 70'000);
  EXPECT_NEAR(static_cast<double>(s.window_ns()), 20e9 / 70, 1e6);
  update(s, 1'000'000);
  EXPECT_EQ(s.window_ns(), Schedule::kLeastWindowNs);
  update(s, 10'000);
  EXPECT_EQ(s.window_ns(), Schedule::kWindowNs);
}

// Ranks that decide apart still record at the same times.
TEST(Schedule, LongPeriodsMeetShortOnes) {
  Schedule dear(0, INT64_MAX), cheap(3, INT64_MAX);
  update(dear, 100'000);
  update(cheap, 20'000);
  ASSERT_GT(dear.period_ns(), cheap.period_ns());
  for (int64_t t = 0; t < 128 * kSecond; t += kSecond / 10) {
    if (dear.mode_at(t) == Mode::full) {
      EXPECT_EQ(cheap.mode_at(t + 3), Mode::full);
    }
  }
}

TEST(Schedule, ManyRecordsThinItOut) {
  Schedule s(0, INT64_MAX);
  update(s, 1'000, Schedule::kRecordsBeforeThinning + 1);
  const int64_t once = s.period_ns();
  EXPECT_GT(once, 0);
  update(s, 1'000, 4 * Schedule::kRecordsBeforeThinning + 1);
  EXPECT_GT(s.period_ns(), once);
  update(s, 1'000, INT64_MAX / 4);
  EXPECT_EQ(s.period_ns(), Schedule::kMostPeriodNs);
}

TEST(Schedule, ComesBackWhenTheProgramSlowsDown) {
  Schedule s(0, INT64_MAX);
  update(s, 50'000);
  EXPECT_GT(s.period_ns(), 0);
  update(s, 500);
  EXPECT_EQ(s.period_ns(), 0);
  s.update(500 * kCostNs, 500, 0, 1000);
  s.update(500 * kCostNs, 500, -5, 1000);
  EXPECT_EQ(s.period_ns(), 0);
}

TEST(Schedule, Ends) {
  const Schedule s(kSecond, 3 * kSecond);
  EXPECT_EQ(s.mode_at(2 * kSecond), Mode::full);
  EXPECT_EQ(s.mode_at(3 * kSecond), Mode::off);
  EXPECT_EQ(s.next_change(2 * kSecond + kSecond / 2), 3 * kSecond);
  EXPECT_EQ(s.next_change(3 * kSecond), INT64_MAX);
}

}  // namespace
}  // namespace saturate::observe::cupti
