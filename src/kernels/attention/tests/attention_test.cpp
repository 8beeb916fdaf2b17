// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention/cpu/kernel.h"
#include "kernels/testing/attention_expect.h"

namespace saturate::kernels {
namespace {

constexpr FeatureSet kValues128 = {.v_head_size = 128};

// As sentences are: most below a tile of 32 rows, a few of two to four.
std::vector<int32_t> with_few_long(int32_t count) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < count; ++i) lengths.push_back(i % 47 == 5 ? 128 - i / 3 : 1 + i * 7 % 23);
  return lengths;
}

const std::vector<Shape>& shapes() {
  static const std::vector<Shape> all = {
      {"one_by_one", {1}, {1}, 1, 1, 64},
      {"sentences", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, false, 0.0f, true, 5, 5},
      {"sentences_causal", {7, 32, 19, 1, 33}, {7, 32, 19, 1, 33}, 2, 2, 64, true, 0.0f, true},
      {"few_long", with_few_long(150), with_few_long(150), 4, 2, 64, true, 0.1f, true, 2, 2},
      {"few_long_cross", with_few_long(80), with_few_long(80), 2, 2, 32, false, 0.0f, false, 1, 3},
      {"cross", {5, 64, 16, 3}, {17, 1, 40, 65}, 2, 2, 32, false, 0.0f, false, 3, 9},
      {"empty", {0, 9, 0, 4, 0}, {3, 0, 0, 12, 5}, 2, 2, 64, false, 0.0f, false, 2, 1},
      {"dropout", {37, 11}, {50, 21}, 2, 2, 64, false, 0.3f},
      {"dropout_causal", {130, 21}, {130, 21}, 2, 2, 64, true, 0.1f, true, 1, 1},
      {"grouped", {20, 45}, {33, 8}, 6, 2, 32, false, 0.2f},
      {"wide", {70, 13}, {70, 13}, 2, 1, 128, true, 0.1f, true},
      {"long", {200, 129}, {257, 131}, 1, 1, 64},
      {"long_causal", {300}, {300}, 1, 1, 64, true, 0.0f, true},
      {"long_wide", {150}, {140}, 1, 1, 128},
      // More blocks of keys than any GPU has multiprocessors, so that each takes several.
      {"many_units", std::vector<int32_t>(20, 140), std::vector<int32_t>(20, 140), 4, 4, 64, true},
      {"many_units_wide", std::vector<int32_t>(40, 70), std::vector<int32_t>(40, 131), 2, 2, 128},
      {"many_blocks", {400, 257}, {400, 257}, 4, 2, 64, true, 0.0f, true, 3, 3},
      {"many_blocks_wide", {300, 129}, {521, 40}, 4, 2, 128},
      {"tiles", {513, 100, 0, 387}, {640, 129, 5, 256}, 2, 1, 64, false, 0.0f, false, 3, 7},
      {"tiles_causal", {641, 130, 257}, {641, 130, 257}, 2, 1, 64, true, 0.0f, true, 2, 2},
      {"tiles_cross_causal", {300, 140}, {130, 400}, 2, 2, 64, true, 0.1f},
      {"tiles_wide", {385, 130}, {385, 130}, 2, 1, 128, true, 0.1f, true},
      {"tiles_dropout", {257, 0, 130}, {320, 5, 129}, 2, 1, 64, false, 0.1f, false, 3, 7},
      {"tiles_dropout_causal", {385, 130}, {385, 130}, 2, 1, 64, true, 0.5f, true, 2, 2},
      {"tiles_dropout_most_pairs", {140, 129}, {300, 40}, 2, 1, 64, false, 31.0f / 32},
      {"tiles_dropout_above_pairs", {140, 129}, {300, 40}, 2, 1, 64, false, 0.97f},
      {"tiles_dropout_hardly", {140, 129}, {300, 40}, 2, 1, 64, true, 0x1p-15f},
      {"tiles_dropout_wide", {140, 129}, {300, 40}, 2, 1, 128, false, 0.2f},
      {"many_units_dropout", std::vector<int32_t>(36, 140), std::vector<int32_t>(36, 140), 2, 2, 64,
       true, 0.1f},
      {"tiles_256", {385, 130}, {385, 130}, 2, 1, 256, false, 0.0f, true, 2, 2},
      {"tiles_256_causal", {641, 130, 257}, {641, 130, 257}, 2, 1, 256, true, 0.0f, true, 2, 2},
      {"cross_256", {129, 100, 0, 65}, {333, 1, 7, 160}, 2, 2, 256, false, 0.0f, false, 3, 7},
      {"cross_256_causal", {300, 140}, {130, 400}, 2, 2, 256, true},
      {"many_units_256", std::vector<int32_t>(40, 140), std::vector<int32_t>(40, 131), 2, 2, 256},
      {"tiles_192", {385, 130}, {385, 130}, 2, 1, 192, false, 0.0f, true, 2, 2, kValues128},
      {"tiles_192_causal", {641, 130}, {641, 130}, 2, 1, 192, true, 0.0f, true, 2, 2, kValues128},
      {"cross_192",
       {129, 100, 0, 65},
       {333, 1, 7, 160},
       2,
       2,
       192,
       false,
       0.0f,
       false,
       3,
       7,
       kValues128},
      {"cross_192_causal", {300, 140}, {130, 400}, 2, 2, 192, true, 0.0f, false, 0, 0, kValues128},
      {"many_units_192", std::vector<int32_t>(40, 70), std::vector<int32_t>(40, 131), 2, 2, 192,
       true, 0.0f, false, 0, 0, kValues128},
      {"odd_head", {9, 18}, {21, 6}, 2, 1, 33, false, 0.1f},
      {"head_256", {17, 34}, {40, 3}, 1, 1, 256, true},
      {"head_16", {40}, {40}, 2, 2, 16, true, 0.5f, true},
      {"no_sequence", {}, {}, 1, 1, 64, false, 0.0f, false, 4, 3},
  };
  return all;
}

struct Case {
  Shape shape;
  DType dtype;
};
std::string name_of_case(const ::testing::TestParamInfo<Case>& i) {
  return std::string(i.param.shape.name) + "_" + name_of(i.param.dtype);
}
std::vector<Case> cases(std::vector<DType> types) {
  std::vector<Case> all;
  for (const Shape& s : shapes())
    for (DType t : types) all.push_back({s, t});
  return all;
}

class AttentionCpuTest : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionCpuTest, MatchesReference) {
  expect_all_right(Problem(GetParam().shape, GetParam().dtype), Device{});
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCpuTest,
                         ::testing::ValuesIn(cases({DType::f32, DType::f64})), name_of_case);

class AttentionCudaTest : public ::testing::TestWithParam<Case> {};
TEST_P(AttentionCudaTest, MatchesReference) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  expect_all_right(Problem(GetParam().shape, GetParam().dtype), Device{DeviceKind::cuda, 0});
}
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionCudaTest,
                         ::testing::ValuesIn(cases({DType::f32, DType::bf16, DType::f16})),
                         name_of_case);

TEST(Attention, VectorExpIsWithinTwoUlp) {
  using Kernels = AttentionCpu<16, float>;
  for (float x = -87.33f; x < 2.0f; x += 0.00037f) {
    const Kernels::Vec v = Kernels::Vec{} + x, y = Kernels::exp_of(v);
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(y[0], want, 2 * 0x1p-23 * want) << x;
  }
  const Kernels::Vec low = Kernels::Vec{} - 100.0f;
  const Kernels::Vec at_low = Kernels::exp_of(low);
  const Kernels::Vec at_infinity = Kernels::exp_of(low - std::numeric_limits<float>::infinity());
  EXPECT_EQ(at_low[0], 0.0f);
  EXPECT_EQ(at_infinity[0], 0.0f);
}

}  // namespace
}  // namespace saturate::kernels
