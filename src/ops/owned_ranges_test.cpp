// SPDX-License-Identifier: Apache-2.0
#include "ops/owned_ranges.h"

#include <gtest/gtest.h>

namespace saturate {
namespace {

using parallel::FlatRange;

// As buckets of a group lie: from the end to the start, the end of the group no multiple.
std::vector<FlatRange> buckets_of(int64_t align) {
  return {{40 * align, 41 * align + 192},
          {9 * align, 40 * align},
          {8 * align, 9 * align},
          {0, 8 * align}};
}

TEST(OwnedRanges, EveryElementHasOneOwnerAndKeepsItsOrder) {
  for (const int64_t align : {int64_t{64}, int64_t{256}, kernels::kNormBlock}) {
    const std::vector<FlatRange> buckets = buckets_of(align);
    const int64_t count = buckets.front().end;
    for (const int ranks : {1, 2, 4, 7}) {
      std::vector<int> owner(static_cast<size_t>(count), -1);
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t before = 0, held = 0;
        for (const OwnedRange& r : owned_ranges(buckets, ranks, rank, align)) {
          EXPECT_LT(r.begin, r.end);
          EXPECT_GE(r.begin, before) << "ranges ascend";
          EXPECT_EQ(r.begin % align, 0);
          EXPECT_TRUE(r.end % align == 0 || r.end == count);
          EXPECT_EQ(r.local, held) << "ranges lie one behind the other";
          before = r.end;
          held += (r.end - r.begin + kernels::kParameterAlign - 1) / kernels::kParameterAlign *
                  kernels::kParameterAlign;
          for (int64_t i = r.begin; i < r.end; ++i) {
            EXPECT_EQ(owner[static_cast<size_t>(i)], -1) << "element " << i << " has two owners";
            owner[static_cast<size_t>(i)] = rank;
          }
        }
      }
      for (size_t i = 0; i < owner.size(); ++i) ASSERT_GE(owner[i], 0) << "element " << i;
      // Within a bucket the ranks' slices come in the order of the ranks.
      for (const FlatRange& b : buckets) {
        for (int64_t i = b.begin + 1; i < b.end; ++i)
          ASSERT_GE(owner[static_cast<size_t>(i)], owner[static_cast<size_t>(i - 1)]);
      }
    }
  }
}

TEST(OwnedRanges, SlicesAreEqualAndPaddedByLessThanOneUnitEach) {
  for (const int64_t align : {int64_t{64}, int64_t{4096}}) {
    for (const int64_t n : {int64_t{0}, int64_t{1}, int64_t{64}, int64_t{4096}, int64_t{100'003}}) {
      for (const int ranks : {1, 2, 4, 7}) {
        const int64_t slice = slice_elements(n, ranks, align);
        EXPECT_EQ(slice % align, 0);
        EXPECT_GE(slice * ranks, n);
        EXPECT_LT(slice * ranks - n, align * ranks);
      }
    }
  }
}

TEST(OwnedRanges, OneRankOwnsItAll) {
  const std::vector<FlatRange> all = {{0, 3 * 4096 + 256}};
  EXPECT_EQ(owned_ranges(all, 1, 0), (std::vector<OwnedRange>{{0, 3 * 4096 + 256, 0}}));
}

// A bucket of two units cannot feed seven ranks.
TEST(OwnedRanges, ARankMayOwnNothing) {
  const std::vector<FlatRange> small = {{0, 2 * 4096}};
  EXPECT_EQ(owned_ranges(small, 7, 1).size(), 1u);
  EXPECT_TRUE(owned_ranges(small, 7, 2).empty());
}

}  // namespace
}  // namespace saturate
