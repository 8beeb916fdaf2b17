// SPDX-License-Identifier: Apache-2.0
#include "ops/arena_plan.h"

#include <gtest/gtest.h>

#include <random>

namespace saturate {
namespace {

void expect_no_overlap(const std::vector<ArenaRequest>& requests, const ArenaPlan& plan) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto begin = static_cast<size_t>(plan.offsets[i]);
    EXPECT_EQ(begin % 256, 0u);
    EXPECT_LE(begin + requests[i].bytes, plan.bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool together =
          requests[i].first <= requests[j].last && requests[j].first <= requests[i].last;
      const auto other = static_cast<size_t>(plan.offsets[j]);
      const bool overlap = begin < other + requests[j].bytes && other < begin + requests[i].bytes;
      EXPECT_FALSE(together && overlap) << i << " and " << j;
    }
  }
}

TEST(ArenaPlan, SharesMemoryOfValuesThatNeverMeet) {
  const ArenaPlan plan = plan_arena({{1000, 0, 1}, {1000, 2, 3}, {500, 1, 2}});
  EXPECT_EQ(plan.bytes, 1024u + 512u);
}

TEST(ArenaPlan, EmptyPlanHasNoBytes) { EXPECT_EQ(plan_arena({}).bytes, 0u); }

TEST(ArenaPlan, RandomLifetimesNeverOverlap) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 20; ++trial) {
    std::vector<ArenaRequest> requests;
    for (int i = 0; i < 200; ++i) {
      const int first = static_cast<int>(rng() % 300);
      requests.push_back({1 + rng() % 100000, first, first + static_cast<int>(rng() % 60)});
    }
    const ArenaPlan plan = plan_arena(requests);
    expect_no_overlap(requests, plan);
    EXPECT_GE(plan.bytes, arena_lower_bound(requests));
  }
}

// The shape of a training step: each forward value lives until its layer's backward.
TEST(ArenaPlan, StaysNearTheLowerBoundOnNestedLifetimes) {
  std::vector<ArenaRequest> requests;
  const int layers = 24, operations = 2 * layers * 4;
  for (int l = 0; l < layers; ++l) {
    for (int k = 0; k < 4; ++k) {
      const int at = l * 4 + k;
      requests.push_back({size_t{1} << (16 + k), at, operations - 1 - at});  // saved for backward
      requests.push_back({size_t{1} << 18, at, at + 1});                     // passed on
      requests.push_back({size_t{1} << 18, operations - 1 - at, operations - at});  // gradient
    }
  }
  const ArenaPlan plan = plan_arena(requests);
  expect_no_overlap(requests, plan);
  EXPECT_LE(static_cast<double>(plan.bytes),
            1.1 * static_cast<double>(arena_lower_bound(requests)));
}

}  // namespace
}  // namespace saturate
