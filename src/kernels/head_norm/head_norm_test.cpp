// SPDX-License-Identifier: Apache-2.0
#include "kernels/head_norm/head_norm.h"

#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

struct Case {
  int64_t rows, heads, head_size, stride;
};
constexpr Case kCases[] = {{1, 1, 2, 2}, {7, 3, 6, 20}, {130, 5, 64, 333}, {3, 2, 128, 256}};

class HeadNormOn : public OnTarget {};

TEST_P(HeadNormOn, MatchesTheDefinitionInPlace) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.heads << " x " << c.head_size);
    const Values x = random(c.rows * c.stride, 1);
    const Values weight = wide_random(c.head_size, 2);
    const Guarded y = array(x), w = wide_array(weight);
    head_norm(ctx(), {.x = y.data(),
                      .weight = w.data(),
                      .y = y.data(),
                      .rows = c.rows,
                      .heads = c.heads,
                      .head_size = c.head_size,
                      .x_stride = c.stride,
                      .y_stride = c.stride,
                      .dtype = dtype(),
                      .eps = 1e-3f});
    Values want = x;
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t at = r * c.stride + h * c.head_size;
        double square = 0;
        for (int64_t k = 0; k < c.head_size; ++k) square += x[at + k] * x[at + k];
        const double rstd = 1 / std::sqrt(square / static_cast<double>(c.head_size) + 1e-3f);
        for (int64_t k = 0; k < c.head_size; ++k) want[at + k] = x[at + k] * rstd * weight[k];
      }
    // Sums of squares err by a unit a term at most, products and the root by a few; below 2^-14 numbers of
    // f16 are 2^-24 apart.
    expect_close("y", y.values(), want,
                 unit() / 2 + wide_unit() * (static_cast<double>(c.head_size) / 2 + 4),
                 Values(want.size(), dtype() == DType::f16 ? 0x1p-25 : 0.0));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, HeadNormOn, all_targets(), target_name);

TEST(HeadNorm, SaysWhatIsWrong) {
  float v[8] = {};
  const Context ctx;
  HeadNormArgs a{.x = v,
                 .weight = v,
                 .y = v,
                 .rows = 2,
                 .heads = 2,
                 .head_size = 2,
                 .x_stride = 4,
                 .y_stride = 3};
  EXPECT_THROW(head_norm(ctx, a), Error);
  a.y_stride = 4;
  EXPECT_NO_THROW(head_norm(ctx, a));
  a.weight = nullptr;
  EXPECT_THROW(head_norm(ctx, a), Error);
}

}  // namespace
}  // namespace saturate::kernels
