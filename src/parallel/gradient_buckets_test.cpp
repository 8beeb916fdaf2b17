// SPDX-License-Identifier: Apache-2.0
#include "parallel/gradient_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace saturate::parallel {
namespace {

using Buckets = std::vector<GradientBucket>;

TEST(GradientBuckets, FollowsBackwardFromTheEnd) {
  const std::vector<FlatRange> order = {{9, 12}, {6, 9}, {3, 6}, {0, 3}};
  EXPECT_EQ(gradient_buckets(order, 5), (Buckets{{{6, 12}, 1}, {{0, 6}, 3}}));
}

TEST(GradientBuckets, LastBucketMayBeShort) {
  const std::vector<FlatRange> order = {{4, 8}, {0, 4}};
  EXPECT_EQ(gradient_buckets(order, 4), (Buckets{{{4, 8}, 0}, {{0, 4}, 1}}));
  EXPECT_EQ(gradient_buckets(order, 100), (Buckets{{{0, 8}, 1}}));
}

TEST(GradientBuckets, ARangeOutOfOrderDelaysNobodyElse) {
  // [8, 10) finishes last, as tied embeddings do.
  const std::vector<FlatRange> order = {{10, 14}, {4, 8}, {0, 4}, {8, 10}};
  EXPECT_EQ(gradient_buckets(order, 4),
            (Buckets{{{10, 14}, 0}, {{4, 8}, 1}, {{0, 4}, 2}, {{8, 10}, 3}}));
}

TEST(GradientBuckets, WhatCannotGrowIsSentAtOnce) {
  // [8, 9) is small, but both neighbours have left when [4, 8) closes.
  const std::vector<FlatRange> order = {{9, 13}, {8, 9}, {4, 8}, {0, 4}};
  EXPECT_EQ(gradient_buckets(order, 4), (Buckets{{{9, 13}, 0}, {{4, 9}, 2}, {{0, 4}, 3}}));
  const std::vector<FlatRange> apart = {{9, 13}, {4, 8}, {8, 9}, {0, 4}};
  EXPECT_EQ(gradient_buckets(apart, 4),
            (Buckets{{{9, 13}, 0}, {{4, 8}, 1}, {{8, 9}, 2}, {{0, 4}, 3}}));
}

TEST(GradientBuckets, AnyOrderIsCoveredOnceAndOnlyAfterItIsFinished) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<FlatRange> ranges;
    int64_t total = 0;
    for (auto n = 1 + random() % 40; n > 0; --n) {
      const int64_t length = 1 + static_cast<int64_t>(random() % 9);
      ranges.push_back({total, total + length});
      total += length;
    }
    std::shuffle(ranges.begin(), ranges.end(), random);
    std::vector<int> finished_at(static_cast<size_t>(total)), covered(static_cast<size_t>(total));
    for (size_t i = 0; i < ranges.size(); ++i)
      for (int64_t e = ranges[i].begin; e < ranges[i].end; ++e)
        finished_at[static_cast<size_t>(e)] = static_cast<int>(i);
    int last = 0;
    for (const GradientBucket& b : gradient_buckets(ranges, 10)) {
      EXPECT_GE(b.ready_after, last);
      last = b.ready_after;
      for (int64_t e = b.elements.begin; e < b.elements.end; ++e) {
        ++covered[static_cast<size_t>(e)];
        EXPECT_LE(finished_at[static_cast<size_t>(e)], b.ready_after);
      }
    }
    EXPECT_TRUE(std::all_of(covered.begin(), covered.end(), [](int n) { return n == 1; }));
  }
}

TEST(GradientBuckets, NoneReachesOverAGap) {
  // [4, 6) and what lies before 2 are nobody's: frozen parameters.
  const std::vector<FlatRange> order = {{8, 9}, {6, 8}, {3, 4}, {2, 3}};
  EXPECT_EQ(gradient_buckets(order, 100), (Buckets{{{6, 9}, 1}, {{2, 4}, 3}}));
  EXPECT_EQ(gradient_buckets(order, 1),
            (Buckets{{{8, 9}, 0}, {{6, 8}, 1}, {{3, 4}, 2}, {{2, 3}, 3}}));
}

TEST(GradientBuckets, RefusesOverlapsAndEmptyRanges) {
  EXPECT_TRUE(gradient_buckets({}, 1).empty());
  EXPECT_THROW(gradient_buckets(std::vector<FlatRange>{{0, 2}, {1, 4}}, 4), Error);
  EXPECT_THROW(gradient_buckets(std::vector<FlatRange>{{0, 0}}, 4), Error);
  EXPECT_THROW(gradient_buckets(std::vector<FlatRange>{{0, 2}}, 0), Error);
}

}  // namespace
}  // namespace saturate::parallel
