// SPDX-License-Identifier: Apache-2.0
// Weights that are rounded to 16 bits again for each product.
#include <gtest/gtest.h>

#include <vector>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

constexpr const char* kRounds =
    "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda";
constexpr const char* kActivates =
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel";
constexpr int64_t kActivation = 2'304, kWeight = 36'864;  // blocks

struct Layers {
  int64_t weight_blocks = 0;  // of what rounds weights; 0: they have 16 bits
  const char* before = kActivates;
  const char* after = nullptr;  // of a step
  int count = 30;
};

Step network(const Layers& n) {
  return [=](Simulator& s, int) {
    for (int layer = 0; layer < n.count; ++layer) {
      s.host(5'000);
      s.kernel(n.before, 12'000, 7, 2 * kActivation);
      if (n.weight_blocks > 0) {
        s.kernel(kRounds, 1'500, 7, 6);  // the bias
        s.kernel(kRounds, 72'000, 7, n.weight_blocks);
      }
      s.kernel(kRounds, 6'500, 7, kActivation);
      s.kernel("nvjet_sm90_tst_144x128_TNN", 43'000, 7, 132);
    }
    s.kernel(n.after == nullptr ? "reduce_kernel" : n.after, 7'000, 7, 288);
  };
}
double promised(const Step& step) {
  const Told told = tell(step);
  EXPECT_TRUE(told.fixes.numbers) << told.fixes.why_not;
  return find(told.fixes, FixKind::weight_casts)->speedup;
}

TEST(WeightCasts, AreOfferedWhereNothingTrains) {
  const Told before = tell(network({.weight_blocks = kWeight})), after = tell(network({}));
  const double gain = before.step_ns / after.step_ns;
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::weight_casts);
  EXPECT_FALSE(before.fixes.worth[0].ceiling);
  EXPECT_GT(gain, 1.8);
  expect_sound(before, FixKind::weight_casts, gain);
  EXPECT_NEAR(before.fixes.worth[0].speedup / gain, 1, 0.1);
  EXPECT_EQ(before.verdict.id, "gpu_bound");
  EXPECT_LT(find(after.fixes, FixKind::weight_casts)->speedup, 1.001);
}

// An optimizer or a backward pass, by a kernel's name or by a stack, changes weights.
TEST(WeightCasts, AreNeededAgainWhereWeightsChange) {
  EXPECT_LT(promised(network({.weight_blocks = kWeight, .after = "multi_tensor_apply adam"})),
            1.001);
  EXPECT_LT(promised(network({.weight_blocks = kWeight, .after = "softmax_warp_backward"})), 1.001);
  const auto updates = [](Trace& t) {
    const uint32_t stack = testing::stack_of(
        t, std::vector<testing::Frame>{{"main", "/home/a/train.py", 28},
                                       {"SGD.step", "/v/site-packages/torch/optim/sgd.py", 80}});
    testing::add_samples(t, 0, 1'000'000, [&](int64_t) { return stack; });
  };
  const Told told = tell(network({.weight_blocks = kWeight}), updates);
  EXPECT_LT(find(told.fixes, FixKind::weight_casts)->speedup, 1.001);
}

// What is as large as something that is computed may be that, with up to four times as many elements a
// block; and so may the output of a kernel that does not show its size, such as a softmax.
TEST(WeightCasts, WhatMayBeComputedIsNoWeight) {
  for (const int64_t blocks : {kActivation / 2, kActivation, 4 * kActivation, 8 * kActivation})
    EXPECT_LT(promised(network({.weight_blocks = blocks})), 1.001) << blocks;
  EXPECT_LT(promised(network({.weight_blocks = kWeight, .before = "softmax_warp_forward"})), 1.001);
}

// The input of a step has a size of its own, too.
TEST(WeightCasts, OnceAStepIsNoWeight) {
  EXPECT_LT(promised(network({.weight_blocks = kWeight, .count = 1})), 1.001);
}

}  // namespace
}  // namespace saturate::observe
