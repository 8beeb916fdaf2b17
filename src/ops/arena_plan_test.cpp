// SPDX-License-Identifier: Apache-2.0
#include "ops/arena_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace saturate {
namespace {

// Alive from operation `first` to operation `last`, both included.
struct ArenaRequest {
  size_t bytes;
  int first, last;
  bool meets(const ArenaRequest& o) const { return first <= o.last && o.first <= last; }
};

ArenaPlan plan_arena(const std::vector<ArenaRequest>& requests) {
  std::vector<size_t> bytes;
  for (const ArenaRequest& r : requests) bytes.push_back(r.bytes);
  return saturate::plan_arena(bytes,
                              [&](size_t a, size_t b) { return requests[a].meets(requests[b]); });
}

// Largest sum of bytes alive at one operation: no plan can be smaller.
size_t arena_lower_bound(const std::vector<ArenaRequest>& requests) {
  std::map<int, size_t> alive;
  for (const ArenaRequest& r : requests) {
    for (int at = r.first; at <= r.last; ++at) alive[at] += (r.bytes + 255) / 256 * 256;
  }
  size_t most = 0;
  for (const auto& [at, bytes] : alive) most = std::max(most, bytes);
  return most;
}

void expect_no_overlap(const std::vector<ArenaRequest>& requests, const ArenaPlan& plan) {
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto begin = static_cast<size_t>(plan.offsets[i]);
    EXPECT_EQ(begin % 256, 0u);
    EXPECT_LE(begin + requests[i].bytes, plan.bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool together = requests[i].meets(requests[j]);
      const auto other = static_cast<size_t>(plan.offsets[j]);
      const bool overlap = begin < other + requests[j].bytes && other < begin + requests[i].bytes;
      EXPECT_FALSE(together && overlap) << i << " and " << j;
    }
  }
}

TEST(ArenaPlan, SharesMemoryOfValuesThatNeverMeet) {
  const ArenaPlan plan =
      plan_arena(std::vector<ArenaRequest>{{1000, 0, 1}, {1000, 2, 3}, {500, 1, 2}});
  EXPECT_EQ(plan.bytes, 1024u + 512u);
}

TEST(ArenaPlan, EmptyPlanHasNoBytes) {
  EXPECT_EQ(plan_arena(std::vector<ArenaRequest>{}).bytes, 0u);
}

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
