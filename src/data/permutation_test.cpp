// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace saturate::data {
namespace {

std::vector<int64_t> all(int64_t count, uint64_t seed, int64_t epoch) {
  const Permutation order(count, seed, epoch);
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(order(i));
  return result;
}

TEST(Permutation, HitsEveryElementOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::vector<int> seen(static_cast<size_t>(count));
    for (const int64_t i : all(count, 3, 2)) {
      ASSERT_TRUE(i >= 0 && i < count);
      ++seen[static_cast<size_t>(i)];
    }
    for (const int n : seen) EXPECT_EQ(n, 1);
  }
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  EXPECT_EQ(all(100, 1, 1), all(100, 1, 1));
  EXPECT_NE(all(100, 1, 1), all(100, 1, 2));
  EXPECT_NE(all(100, 1, 1), all(100, 2, 1));
}

// Over many epochs element i lands anywhere alike: chi-squared of (start, place) counts with
// (n-1)^2 degrees of freedom stays within 6 standard deviations of its mean.
TEST(Permutation, PlacesElementsUniformly) {
  constexpr int64_t kCount = 11, kEpochs = 20000;
  std::vector<double> hits(kCount * kCount);
  for (int64_t e = 0; e < kEpochs; ++e) {
    const Permutation order(kCount, 5, e);
    for (int64_t i = 0; i < kCount; ++i) ++hits[static_cast<size_t>(i * kCount + order(i))];
  }
  const double expected = static_cast<double>(kEpochs) / kCount,
               freedom = (kCount - 1) * (kCount - 1);
  double chi2 = 0;
  for (const double h : hits) chi2 += (h - expected) * (h - expected) / expected;
  EXPECT_NEAR(chi2, freedom, 6 * std::sqrt(2 * freedom));
}

TEST(Permutation, SeeksInHugeRanges) {
  const Permutation order(int64_t{100'000'000'000}, 1, 0);
  for (int64_t i = 0; i < 1000; ++i) {
    const int64_t x = order(i * 99'999'999);
    ASSERT_TRUE(x >= 0 && x < 100'000'000'000);
  }
}

}  // namespace
}  // namespace saturate::data
