// SPDX-License-Identifier: Apache-2.0
#include "train/power_meter.h"

#include <gtest/gtest.h>

#include <cmath>

namespace saturate::train {
namespace {

// 400 W, counted every 0.1 s and read every 0.03 s: a stretch that begins and ends within a period
// would be wrong by up to a period at each end, 17% here.
TEST(PowerMeter, CountsWholePeriodsOfTheCounter) {
  PowerMeter meter;
  for (double t = 0.02; t < 1.2; t += 0.03) meter.add(t, 1e6 + 40 * std::floor(t / 0.1));
  ASSERT_TRUE(meter.watts());
  EXPECT_NEAR(*meter.watts(), 400, 400 * 0.03 / 1.0);
}

TEST(PowerMeter, SaysNothingBeforeTwoChanges) {
  PowerMeter meter;
  EXPECT_FALSE(meter.watts());
  meter.add(0, 10);
  meter.add(1, 10);
  EXPECT_FALSE(meter.watts());
  meter.add(2, 20);
  EXPECT_FALSE(meter.watts());
  meter.add(4, 60);
  ASSERT_TRUE(meter.watts());
  EXPECT_DOUBLE_EQ(*meter.watts(), 20);
  meter.add(5, 60);  // no change: the end stays
  EXPECT_DOUBLE_EQ(*meter.watts(), 20);
}

}  // namespace
}  // namespace saturate::train
