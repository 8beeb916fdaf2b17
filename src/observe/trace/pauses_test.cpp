// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/pauses.h"

#include <gtest/gtest.h>

#include <random>

namespace saturate::observe {
namespace {

TEST(PausedClock, StandsStillInPauses) {
  PausedClock clock;
  clock.add({100, 200});
  clock.add({300, 350});
  EXPECT_EQ(clock.at(50), 50);
  EXPECT_EQ(clock.at(100), 100);
  EXPECT_EQ(clock.at(150), 100);
  EXPECT_EQ(clock.at(200), 100);
  EXPECT_EQ(clock.at(299), 199);
  EXPECT_EQ(clock.at(320), 200);
  EXPECT_EQ(clock.at(400), 250);
  EXPECT_EQ(clock.paused_ns(), 150);
  EXPECT_FALSE(clock.paused(99));
  EXPECT_TRUE(clock.paused(100));
  EXPECT_TRUE(clock.paused(199));
  EXPECT_FALSE(clock.paused(200));
}

// In any order, overlapping or not: a time moves back by the paused nanoseconds before it.
TEST(PausedClock, CountsThePausedTimeBefore) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<bool> stands(400);
    PausedClock clock;
    for (int i = 0; i < 12; ++i) {
      const auto from = static_cast<int64_t>(random() % 400);
      const int64_t to = std::min<int64_t>(400, from + static_cast<int64_t>(random() % 30));
      clock.add({from, to});
      for (int64_t t = from; t < to; ++t) stands[static_cast<size_t>(t)] = true;
    }
    int64_t run = 0;
    for (int64_t t = 0; t < 400; ++t) {
      ASSERT_EQ(clock.at(t), run) << round << " " << t;
      ASSERT_EQ(clock.paused(t), stands[static_cast<size_t>(t)]);
      run += !stands[static_cast<size_t>(t)];
    }
  }
}

}  // namespace
}  // namespace saturate::observe
