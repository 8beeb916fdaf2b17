// SPDX-License-Identifier: Apache-2.0
#include "model/finite.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace saturate::model {
namespace {

TEST(FirstNotFinite, FindsTheFirstWhereverItLies) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  for (const size_t size : {size_t{1}, size_t{4096}, size_t{10000}}) {
    std::vector<float> values(size, -kLargest);
    values[size / 2] = kSmallest;
    EXPECT_EQ(first_not_finite(values), size);
    values[size - 1] = std::nanf("");
    EXPECT_EQ(first_not_finite(values), size - 1);
    values[size / 2] = -INFINITY;
    EXPECT_EQ(first_not_finite(values), size / 2);
    values[0] = INFINITY;
    EXPECT_EQ(first_not_finite(values), size_t{0});
  }
  EXPECT_EQ(first_not_finite({}), size_t{0});
}

}  // namespace
}  // namespace saturate::model
