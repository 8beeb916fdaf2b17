// SPDX-License-Identifier: Apache-2.0
// Layers that run forward again in the backward pass.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::find;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

void forward(Simulator& s, int64_t up_ns = 700'000) {
  s.host(20'000);
  s.kernel("vectorized_layer_norm_kernel", 35'000);
  s.kernel("nvjet_sm90_tst_TNT", up_ns);
  s.kernel("vectorized_elementwise_kernel GeluCUDAKernelImpl", 105'000);
}
void backward(Simulator& s) {
  s.host(20'000);
  s.kernel("nvjet_sm90_tst_NNT", 700'000);
  s.kernel("vectorized_elementwise_kernel GeluBackwardCUDAKernelImpl", 140'000);
  s.kernel("nvjet_sm90_tst_NTT", 700'000);
  s.kernel("layer_norm_grad_input_kernel", 37'000);
}
void update(Simulator& s) { s.kernel("multi_tensor_apply_kernel adam", 30'000); }

// `loss_first`: a step is taken to begin with the backward pass, and so ends with a forward pass.
Step checkpointed(bool again, bool loss_first = false) {
  return [=](Simulator& s, int) {
    if (!loss_first)
      for (int layer = 0; layer < 6; ++layer) forward(s);
    for (int layer = 0; layer < 6; ++layer) {
      if (again) forward(s);
      backward(s);
    }
    update(s);
    if (loss_first)
      for (int layer = 0; layer < 6; ++layer) forward(s);
  };
}

// Some of the samples find a layer that runs again.
void checkpoints(Trace& t) {
  const uint32_t stack = testing::stack_of(
      t, std::vector<testing::Frame>{
             {"recompute_fn", "/v/lib/python3.12/site-packages/torch/utils/checkpoint.py", 1607},
             {"Block.forward", "/home/a/train.py", 28}});
  testing::add_samples(t, 0, 1'000'000, [&](int64_t) { return stack; });
}

TEST(Recompute, LayersThatRunForwardAgainAreSeen) {
  for (const bool loss_first : {false, true}) {
    const Told before = tell(checkpointed(true, loss_first), checkpoints),
               after = tell(checkpointed(false, loss_first), checkpoints);
    ASSERT_TRUE(before.fixes.numbers) << before.fixes.why_not;
    ASSERT_FALSE(before.fixes.worth.empty());
    const Fix& fix = before.fixes.worth[0];
    ASSERT_EQ(fix.kind, FixKind::recompute);
    EXPECT_FALSE(fix.ceiling);  // memory decides, and the last layer does not show
    const double gain = before.step_ns / after.step_ns;
    EXPECT_NEAR(fix.speedup / gain, 1, 0.05);
    EXPECT_GT(gain, fix.low);
    EXPECT_LT(gain, fix.high);
    EXPECT_LT(find(after.fixes, FixKind::recompute)->speedup, 1.001);
  }
}

// Names of kernels are alike in networks of equal blocks.
TEST(Recompute, WithoutAStackThatShowsItNothingIsPromised) {
  EXPECT_LT(find(tell(checkpointed(true)).fixes, FixKind::recompute)->speedup, 1.001);
}

// Batches whose gradients are added up run forward after a backward pass, too, but whole.
TEST(Recompute, AnotherBatchIsNoRecomputation) {
  const Told r = tell(
      [](Simulator& s, int) {
        for (int batch = 0; batch < 3; ++batch) {
          for (int layer = 0; layer < 6; ++layer) forward(s);
          for (int layer = 0; layer < 6; ++layer) backward(s);
        }
        update(s);
      },
      checkpoints);
  EXPECT_LT(find(r.fixes, FixKind::recompute)->speedup, 1.001);
}

// Two networks of one step, one after the other, as of a generator and a discriminator.
TEST(Recompute, AnotherNetworkIsNoRecomputation) {
  const Told r = tell(
      [](Simulator& s, int) {
        for (int layer = 0; layer < 4; ++layer) forward(s);
        for (int pass = 0; pass < 2; ++pass) {
          for (int layer = 0; layer < 3; ++layer) forward(s, 300'000);
          for (int layer = 0; layer < 3; ++layer) backward(s);
          update(s);
        }
        for (int layer = 0; layer < 4; ++layer) backward(s);
        update(s);
      },
      checkpoints);
  EXPECT_LT(find(r.fixes, FixKind::recompute)->speedup, 1.001);
}

}  // namespace
}  // namespace saturate::observe
