// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/decode/beam_row_wide.h"
#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels {
namespace {

#if defined(__x86_64__)
TEST(BeamRowWide, SumsAndFindsTheLargestOfEveryLength) {
  if (cpu_level() < CpuLevel::avx512) GTEST_SKIP() << "no AVX-512 here";
  for (int64_t n = 1; n < 300; ++n) {
    std::vector<float> z;
    for (int64_t i = 0; i < n; ++i)
      z.push_back(static_cast<float>(20 * std::sin(3.7 * static_cast<double>(i * n))));
    z[static_cast<size_t>(n / 2)] = -std::numeric_limits<float>::infinity();
    if (n > 2) z[static_cast<size_t>(n / 3)] = NAN;
    z.push_back(1e30f);  // nobody's
    float top = -std::numeric_limits<float>::infinity();
    for (int64_t i = 0; i < n; ++i)
      top = z[static_cast<size_t>(i)] > top ? z[static_cast<size_t>(i)] : top;
    EXPECT_EQ(largest_avx512(z.data(), n), top) << n;
    if (n > 2) {
      EXPECT_TRUE(std::isnan(exp_sum_avx512(z.data(), n, top))) << n;
      z[static_cast<size_t>(n / 3)] = top - 1;
    }
    if (n == 1) continue;  // nothing but minus infinity
    double sum = 0;
    for (int64_t i = 0; i < n; ++i)
      sum += std::exp(static_cast<double>(z[static_cast<size_t>(i)] - top));
    EXPECT_NEAR(exp_sum_avx512(z.data(), n, top) / sum, 1, 1e-6) << n;
  }
}
#endif

}  // namespace
}  // namespace saturate::kernels
