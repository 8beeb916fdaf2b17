// SPDX-License-Identifier: Apache-2.0
#include "parallel/activity.h"

#include <gtest/gtest.h>

namespace saturate::parallel {
namespace {

using std::chrono::seconds;

TEST(Activity, SaysWhatARankIsAt) {
  Activity a;
  EXPECT_EQ(a.now().text, "while starting");
  EXPECT_EQ(a.now().pace, Pace::any);
  const uint64_t before = a.now().moves;
  a.set_step(7);
  a.set_action("training", Pace::steady);
  a.begin({.group = {1, {0, 2}, "tp"}, .count = 5});
  EXPECT_TRUE(a.now().waits);
  EXPECT_EQ(a.now().step, 7);
  EXPECT_EQ(a.now().text, "while training, in all_reduce of 5 f32 over tp ranks 0, 2");
  a.end();
  EXPECT_FALSE(a.now().waits);
  EXPECT_EQ(a.now().text, "while training, after all_reduce of 5 f32 over tp ranks 0, 2");
  EXPECT_EQ(a.now().moves, before + 4);
}

Whereabouts rank(uint64_t moves, bool waits, Pace pace = Pace::steady) {
  return {.step = 3,
          .moves = moves,
          .pace = pace,
          .waits = waits,
          .text = waits ? "while training, in x" : "while training"};
}

// A watch that has seen the ranks once, at second 0.
struct Watched {
  StallWatch watch;
  StallWatch::Clock::time_point zero{};
  StallWatch::Finding look(int at, const std::vector<Whereabouts>& ranks) {
    return watch.look(ranks, zero + seconds(at));
  }
  explicit Watched(const std::vector<Whereabouts>& ranks) { look(0, ranks); }
};

TEST(StallWatch, TellsAndThenNamesTheRankThatKeepsTheOthersWaiting) {
  const std::vector<Whereabouts> stuck = {rank(9, true), rank(4, false), rank(9, true)};
  Watched w(stuck);
  EXPECT_EQ(w.look(59, stuck).told, "");
  EXPECT_EQ(
      w.look(60, stuck).told,
      "no rank has gone on for 60 s: ranks 0, 2 at step 3 while training, in x; rank 1 at step 3 "
      "while training");
  EXPECT_EQ(w.look(119, stuck).told, "");
  EXPECT_NE(w.look(120, stuck).told, "");
  EXPECT_EQ(w.look(599, stuck).failed_rank, -1);
  EXPECT_EQ(w.look(600, stuck).failed_rank, 1);
}

TEST(StallWatch, TakesNoSlowMachineForAStall) {
  Watched w({rank(1, true), rank(1, false)});
  EXPECT_EQ(w.look(200, {rank(1, true), rank(2, false)}).failed_rank, -1);  // 200 s for one move
  EXPECT_EQ(w.look(2100, {rank(1, true), rank(2, false)}).failed_rank, -1);
  EXPECT_EQ(w.look(2200, {rank(1, true), rank(2, false)}).failed_rank, 1);
}

TEST(StallWatch, WaitsForRanksThatWorkLong) {
  const std::vector<Whereabouts> validates = {rank(1, false, Pace::any), rank(1, true)};
  Watched w(validates);
  EXPECT_EQ(w.look(5000, validates).told, "");
  // Its time begins when all are to go on again.
  EXPECT_EQ(w.look(5001, {rank(2, false), rank(1, true)}).told, "");
  EXPECT_EQ(w.look(5060, {rank(2, false), rank(1, true)}).told, "");
  EXPECT_NE(w.look(5061, {rank(2, false), rank(1, true)}).told, "");
}

}  // namespace
}  // namespace saturate::parallel
