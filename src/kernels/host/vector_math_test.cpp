// SPDX-License-Identifier: Apache-2.0
#include "kernels/host/vector_math.h"

#include <gtest/gtest.h>

#include <limits>

namespace saturate::kernels {
namespace {

TEST(VectorMath, ExpStaysWithinItsRelativeBound) {
  for (double x = -87.25; x < 88.0; x += 0.000731) {
    const float at = static_cast<float>(x);
    const double want = std::exp(static_cast<double>(at));
    ASSERT_LE(std::fabs(static_cast<double>(vector_exp(at)) - want), 0x1p-22 * want) << "at " << at;
  }
}

TEST(VectorMath, ExpEndsInZeroInfinityAndNaN) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(vector_exp(0.0f), 1.0f);
  EXPECT_EQ(vector_exp(-88.0f), 0.0f);
  EXPECT_EQ(vector_exp(-kInfinity), 0.0f);
  EXPECT_EQ(vector_exp(89.0f), kInfinity);
  EXPECT_EQ(vector_exp(kInfinity), kInfinity);
  EXPECT_TRUE(std::isnan(vector_exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(VectorMath, NormalDistributionStaysWithinItsAbsoluteBound) {
  for (double x = -15; x < 15; x += 0.000217) {
    const float at = static_cast<float>(x);
    const Normal<float> got = normal_distribution(at);
    const Normal<double> want = normal_distribution(static_cast<double>(at));
    ASSERT_LE(std::fabs(static_cast<double>(got.cdf) - want.cdf), 0x1p-22) << "at " << at;
    ASSERT_LE(std::fabs(static_cast<double>(got.pdf) - want.pdf), 0x1p-22) << "at " << at;
  }
}

TEST(VectorMath, SigmoidReachesBothEnds) {
  EXPECT_EQ(sigmoid(0.0f), 0.5f);
  EXPECT_EQ(sigmoid(-200.0f), 0.0f);
  EXPECT_EQ(sigmoid(200.0f), 1.0f);
}

TEST(VectorMath, LaneSumTakesEveryElementOnce) {
  for (int64_t n : {0, 1, 15, 16, 17, 33, 513}) {
    const double sum = lane_sum<double>(n, [](int64_t i) { return static_cast<double>(i + 1); });
    EXPECT_EQ(sum, static_cast<double>(n * (n + 1) / 2)) << n;
  }
}

}  // namespace
}  // namespace saturate::kernels
