// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer/schedule.h"

#include <gtest/gtest.h>

namespace saturate {
namespace {

constexpr float kPeak = 2e-3f;

Schedule schedule(ScheduleKind kind, int64_t warmup, int64_t total, float final_ratio = 0.0f) {
  return {.kind = kind,
          .peak_lr = kPeak,
          .final_ratio = final_ratio,
          .warmup_steps = warmup,
          .total_steps = total};
}

TEST(Schedule, WarmsUpLinearlyFromTheFirstStepWhateverTheKind) {
  for (const auto kind : {ScheduleKind::constant, ScheduleKind::inverse_sqrt, ScheduleKind::linear,
                          ScheduleKind::cosine, ScheduleKind::warmup_stable_decay}) {
    const Schedule s = schedule(kind, 10, 1000);
    EXPECT_FLOAT_EQ(learning_rate(s, 1), kPeak / 10);
    EXPECT_FLOAT_EQ(learning_rate(s, 5), kPeak / 2);
    EXPECT_FLOAT_EQ(learning_rate(s, 10), kPeak);
    EXPECT_LE(learning_rate(s, 11), kPeak);
  }
}

TEST(Schedule, StartsAtThePeakWithoutWarmup) {
  for (const auto kind :
       {ScheduleKind::constant, ScheduleKind::inverse_sqrt, ScheduleKind::warmup_stable_decay}) {
    EXPECT_FLOAT_EQ(learning_rate(schedule(kind, 0, 100), 1), kPeak);
  }
  EXPECT_FLOAT_EQ(learning_rate(schedule(ScheduleKind::linear, 0, 100), 1), kPeak * 0.99f);
}

TEST(Schedule, InverseSqrtHalvesAtFourTimesTheWarmup) {
  EXPECT_FLOAT_EQ(learning_rate(schedule(ScheduleKind::inverse_sqrt, 100, 0), 400), kPeak / 2);
  EXPECT_FLOAT_EQ(learning_rate(schedule(ScheduleKind::inverse_sqrt, 0, 0), 16), kPeak / 4);
}

TEST(Schedule, LinearAndCosineReachTheFinalRateAndStayThere) {
  for (const auto kind : {ScheduleKind::linear, ScheduleKind::cosine}) {
    const Schedule s = schedule(kind, 20, 120, 0.1f);
    EXPECT_FLOAT_EQ(learning_rate(s, 70), kPeak * 0.55f);  // both are half way at the middle
    for (const int64_t step : {120, 121, 100000})
      EXPECT_FLOAT_EQ(learning_rate(s, step), kPeak * 0.1f);
  }
  EXPECT_GT(learning_rate(schedule(ScheduleKind::cosine, 0, 100), 25),
            learning_rate(schedule(ScheduleKind::linear, 0, 100), 25));
}

TEST(Schedule, WarmupStableDecayHoldsAndThenFalls) {
  const Schedule s = schedule(ScheduleKind::warmup_stable_decay, 10, 100);
  EXPECT_FLOAT_EQ(learning_rate(s, 79), kPeak);
  EXPECT_FLOAT_EQ(learning_rate(s, 80), kPeak);
  EXPECT_FLOAT_EQ(learning_rate(s, 90), kPeak / 2);
  EXPECT_FLOAT_EQ(learning_rate(s, 100), 0.0f);
  EXPECT_FLOAT_EQ(learning_rate(s, 101), 0.0f);
}

TEST(Schedule, StaysFiniteWhenWarmupFillsTheRunOrTheTotalIsMissing) {
  for (const auto kind :
       {ScheduleKind::linear, ScheduleKind::cosine, ScheduleKind::warmup_stable_decay}) {
    EXPECT_FLOAT_EQ(learning_rate(schedule(kind, 50, 50, 0.5f), 50), kPeak * 0.5f);
    EXPECT_FLOAT_EQ(learning_rate(schedule(kind, 0, 0, 0.5f), 7), kPeak * 0.5f);
  }
}

}  // namespace
}  // namespace saturate
