// SPDX-License-Identifier: Apache-2.0
#include "plan/simulate.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace saturate::plan {
namespace {

Task compute(double us, std::vector<int32_t> waits = {}) {
  return {.name = "compute", .us = us, .waits = std::move(waits)};
}
Task transfer(double us, std::vector<int32_t> waits, int32_t lane = 1, int64_t meeting = -1) {
  return {.name = "transfer",
          .kind = TaskKind::communication,
          .lane = lane,
          .us = us,
          .waits = std::move(waits),
          .meeting = meeting,
          .axis = "dp"};
}

TEST(Simulate, TwoLanesRunBesideEachOther) {
  // 10, then 20 beside a transfer of 15, then what needs both.
  const TaskList list{compute(10), transfer(15, {0}), compute(20), compute(5, {1})};
  const Simulation s = simulate({&list, 1});
  EXPECT_DOUBLE_EQ(s.end_us, 35);
  EXPECT_DOUBLE_EQ(s.times[0][1].begin_us, 10);
  EXPECT_DOUBLE_EQ(s.times[0][1].end_us, 25);
  EXPECT_DOUBLE_EQ(s.ranks[0].compute_us, 35);
  EXPECT_DOUBLE_EQ(s.ranks[0].communication_us, 15);
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed_us, 0);
}

TEST(Simulate, WhatNothingHidesIsExposed) {
  const TaskList list{compute(10), transfer(15, {0}), compute(4), compute(5, {1})};
  const Simulation s = simulate({&list, 1});
  EXPECT_DOUBLE_EQ(s.end_us, 30);
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed_us, 11);
  ASSERT_EQ(s.ranks[0].exposed_by_axis.size(), 1u);
  EXPECT_EQ(s.ranks[0].exposed_by_axis[0].first, "dp");
  EXPECT_DOUBLE_EQ(s.ranks[0].exposed_by_axis[0].second, 11);
  EXPECT_DOUBLE_EQ(s.ranks[0].idle_us(), 0);
}

TEST(Simulate, ComputationIsSlowerBesideATransfer) {
  // 10 of 20 run while the transfer does, at half the rate: 10 alone would have been 5.
  const TaskList list{compute(1), transfer(10, {0}), compute(20)};
  EXPECT_DOUBLE_EQ(simulate({&list, 1}, 0.5).end_us, 1 + 10 + 15);
}

TEST(Simulate, RanksThatMeetWaitForEachOther) {
  const TaskList lists[] = {{compute(10), transfer(5, {0}, 1, 7), compute(1, {1})},
                            {compute(30), transfer(5, {0}, 1, 7), compute(1, {1})}};
  const Simulation s = simulate(lists);
  EXPECT_DOUBLE_EQ(s.end_us, 36);
  EXPECT_DOUBLE_EQ(s.times[0][1].begin_us, 30);
  EXPECT_DOUBLE_EQ(s.ranks[0].idle_us(), 20);  // waits in the meeting
  EXPECT_DOUBLE_EQ(s.ranks[1].idle_us(), 0);
}

// GPipe on p stages with A micro-batches of forward f and backward 2 f: all forwards, then all
// backwards; what passes costs nothing. The bubble is (p - 1) / A of the work.
TEST(Simulate, TheBubbleOfGPipeIsExact) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int a : {1, 4, 7, 32}) {
      std::vector<TaskList> lists(static_cast<size_t>(p));
      int64_t meeting = 0;
      const auto pass = [&](int from, int to) {
        for (const int r : {from, to}) {
          TaskList& l = lists[static_cast<size_t>(r)];
          const bool sends = r == from;
          const std::vector<int32_t> after =
              sends ? std::vector<int32_t>{static_cast<int32_t>(l.size()) - 1}
                    : std::vector<int32_t>{};
          l.push_back(transfer(0, after, sends ? 1 : 2, meeting));
        }
        ++meeting;
      };
      const auto work = [&](int r, double us, bool receives) {
        TaskList& l = lists[static_cast<size_t>(r)];
        l.push_back(compute(us, receives ? std::vector<int32_t>{static_cast<int32_t>(l.size()) - 1}
                                         : std::vector<int32_t>{}));
      };
      for (int m = 0; m < a; ++m) {
        for (int r = 0; r < p; ++r) {
          work(r, 1, r > 0);
          if (r + 1 < p) pass(r, r + 1);
        }
      }
      for (int m = 0; m < a; ++m) {
        for (int r = p - 1; r >= 0; --r) {
          work(r, 2, r + 1 < p);
          if (r > 0) pass(r, r - 1);
        }
      }
      const Simulation s = simulate(lists);
      EXPECT_DOUBLE_EQ(s.end_us, 3.0 * (a + p - 1)) << p << " stages, " << a << " micro-batches";
      for (const RankTime& r : s.ranks) EXPECT_DOUBLE_EQ(r.compute_us, 3.0 * a);
    }
  }
}

TEST(Simulate, NamesWhatCanNeverBegin) {
  const TaskList lists[] = {{transfer(1, {}, 0, 1), transfer(1, {}, 0, 2)},
                            {transfer(1, {}, 0, 2), transfer(1, {}, 0, 1)}};
  try {
    simulate(lists);
    FAIL() << "a ring of waits was not seen";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "[simulate] no task can begin any more: rank 0 at transfer (the others it meets "
                 "never come), rank 1 at transfer (the others it meets never come)");
  }
}

}  // namespace
}  // namespace saturate::plan
