// SPDX-License-Identifier: Apache-2.0
#include "kernels/rotary/rotary.h"

#include <cmath>

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using namespace saturate::testing;

struct Case {
  int64_t rows, heads, head_size, x_stride, y_stride;
};
// Wide and scalar accesses; x inside a packed projection; a row without neighbours.
constexpr Case kCases[] = {{1, 1, 2, 2, 2},       {7, 3, 6, 18, 20},     {513, 2, 32, 64, 64},
                           {5, 8, 64, 1536, 512}, {3, 4, 128, 513, 512}, {9, 3, 16, 48, 48}};

class RotaryOn : public OnTarget {};

// Head size 8 with base 100: the channels turn 15.9, 5.0, 1.6 and 0.5 times over 100 positions.
TEST_P(RotaryOn, SlowsChannelsDownByTheirTurns) {
  constexpr int64_t kRows = 50, kSize = 8;
  for (const int64_t original : {0, 100}) {
    const Values x = random(kRows * kSize, 1);
    Values positions, want, slack;
    for (int64_t r = 0; r < kRows; ++r) positions.push_back(static_cast<double>(2 * r));
    const Guarded y = array(x), g_positions(stream(), DType::i32, positions);
    rotary(ctx(), {.x = y.data(),
                   .y = y.data(),
                   .positions = g_positions.as<int32_t>(),
                   .rows = kRows,
                   .heads = 1,
                   .head_size = kSize,
                   .x_stride = kSize,
                   .y_stride = kSize,
                   .dtype = dtype(),
                   .base = 100.0f,
                   .factor = 8.0f,
                   .low = 1.0f,
                   .high = 4.0f,
                   .original = original});
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t k = 0; k < kSize; ++k) {
        const double f = std::pow(100.0, -2.0 * static_cast<double>(k % 4) / 8);
        const double turns = 100 * f / (2 * 3.14159265358979324);
        double share = std::min(1.0, std::max(0.0, (turns - 1) / 3));
        if (original == 0) share = 0;
        const double angle = positions[r] * f * (share + (1 - share) / 8);
        const double mine = x[r * kSize + k], other = x[r * kSize + (k + 4) % kSize];
        want.push_back(mine * std::cos(angle) + (k < 4 ? -other : other) * std::sin(angle));
        slack.push_back(wide_unit() * (16 * angle + 4) * (std::fabs(mine) + std::fabs(other)));
      }
    expect_close("y", y.values(), want, unit() / 2, slack);
  }
}

TEST_P(RotaryOn, MatchesTheDefinitionAndItsInverseUndoesIt) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.heads << " x " << c.head_size);
    const Values x = random(c.rows * c.x_stride, 1);
    Values positions;
    for (int64_t r = 0; r < c.rows; ++r) positions.push_back(static_cast<double>(r * 37 % 1024));
    const Guarded g_x = array(x), y = poison(c.rows * c.y_stride),
                  g_positions(stream(), DType::i32, positions);
    RotaryArgs args{.x = g_x.data(),
                    .y = y.data(),
                    .positions = g_positions.as<int32_t>(),
                    .rows = c.rows,
                    .heads = c.heads,
                    .head_size = c.head_size,
                    .x_stride = c.x_stride,
                    .y_stride = c.y_stride,
                    .dtype = dtype()};
    rotary(ctx(), args);
    const Values got = y.values();
    Values seen, want, slack;
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t k = c.heads * c.head_size; k < c.y_stride; ++k) {
        EXPECT_TRUE(std::isnan(got[r * c.y_stride + k])) << "written between rows";
      }
      for (int64_t k = 0; k < c.heads * c.head_size; ++k) {
        const int64_t half = c.head_size / 2, j = k % c.head_size % half;
        const double angle = positions[r] * std::pow(10000.0, -2.0 * static_cast<double>(j) /
                                                                  static_cast<double>(c.head_size));
        const bool low = k % c.head_size < half;
        const double mine = x[r * c.x_stride + k],
                     other = x[r * c.x_stride + k + (low ? half : -half)];
        seen.push_back(got[r * c.y_stride + k]);
        want.push_back(mine * std::cos(angle) + (low ? -other : other) * std::sin(angle));
        // The frequency errs by at most 8 units (4 ulp of powf, the exponent's rounding), the angle
        // by that share of itself; sine, cosine and the sum add a few units.
        slack.push_back(wide_unit() * (8 * angle + 4) * (std::fabs(mine) + std::fabs(other)));
      }
    }
    expect_close("y", seen, want, unit() / 2, slack);

    args.x = args.y;  // in place
    args.x_stride = c.y_stride;
    args.inverse = true;
    rotary(ctx(), args);
    const Values back = y.values();
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t k = 0; k < c.heads * c.head_size; ++k) {
        // Two roundings to dtype of numbers up to the pair's length, below 8 here.
        EXPECT_NEAR(back[r * c.y_stride + k], x[r * c.x_stride + k], 8 * 2 * unit())
            << r << ", " << k;
      }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RotaryOn, all_targets(), target_name);

TEST(Rotary, SaysWhatIsWrong) {
  float v[8] = {};
  const int32_t position = 0;
  const auto message = [&](RotaryArgs a) -> std::string {
    a.x = a.y = v;
    a.positions = &position;
    try {
      rotary({}, a);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message({.rows = 1, .heads = 1, .head_size = 3}),
            "[rotary] head_size is 3: rotary positions pair channels, so it must be even");
  EXPECT_EQ(message({.rows = 2, .heads = 2, .head_size = 2, .x_stride = 2, .y_stride = 4}),
            "[rotary] strides are 2 and 4 for 2 heads of 2: rows of 4 elements overlap");
  EXPECT_EQ(message({.rows = 1, .heads = 1, .head_size = 2, .base = 0.0f}),
            "[rotary] base is 0: it must be positive");
}

}  // namespace
}  // namespace saturate::kernels
