// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/beam_row_cpu.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/gemm/packed/packed_linear.h"

namespace saturate::kernels {
namespace {

// Of every length, with values that are no numbers, infinite or far apart, and one behind the row that is
// nobody's.
TEST(BeamRow, HasTheSameBitsOnEveryProcessor) {
  if (cpu_level() < CpuLevel::avx512) GTEST_SKIP() << "no AVX-512 here";
  for (int64_t n = 1; n < 300; ++n) {
    std::vector<float> z;
    for (int64_t i = 0; i < n; ++i)
      z.push_back(static_cast<float>(60 * std::sin(3.7 * static_cast<double>(i * n))));
    z.push_back(1e30f);
    const auto at = [&](int64_t i) -> float& { return z[static_cast<size_t>(i)]; };
    if (n > 3) at(n / 2) = -std::numeric_limits<float>::infinity();
    for (const bool number : {true, false}) {
      if (!number) at(n / 3) = NAN;
      const LogitsRow<float> narrow{z.data(), n, nullptr, false}, wide{z.data(), n, nullptr, true};
      const std::vector<float> tops = largest_of_stretches(narrow);
      EXPECT_EQ(largest_of_stretches(wide), tops) << n;
      const float sum = log_sum(narrow, tops), same = log_sum(wide, tops);
      EXPECT_EQ(std::isnan(same), std::isnan(sum)) << n;
      if (!std::isnan(sum)) {
        EXPECT_EQ(std::bit_cast<uint32_t>(same), std::bit_cast<uint32_t>(sum)) << n;
      }
      if (number && n > 3) {
        double exact = 0;
        for (int64_t i = 0; i < n; ++i) exact += std::exp(static_cast<double>(at(i)));
        EXPECT_NEAR(sum, std::log(exact), 1e-5) << n;
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
