// SPDX-License-Identifier: Apache-2.0
// What remedies that write kernels anew gain, and what the work of a device holds up.
#include <gtest/gtest.h>

#include <algorithm>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::layers;
using testing::Simulator;
using testing::tell;
using testing::Told;

// Operations on lists of tensors, and compilers, make one kernel of many short ones.
TEST(VerdictOfKernels, ShortKernelsThatAreJoinedHaveNoCeiling) {
  const auto program = [](bool joined) {
    return [=](Simulator& s, int) {
      s.kernel("sm90_gemm_bf16bf16", 300'000);
      for (int i = 0; i < (joined ? 1 : 100); ++i) {
        s.host(8'000);
        s.kernel("void at::native::vectorized_elementwise_kernel<4>", 3'000, 7, 16);
      }
    };
  };
  const Told before = tell(program(false));
  EXPECT_EQ(before.verdict.id, "launch_bound");
  const Fix& graphs = *find(before.fixes, FixKind::graphs);
  EXPECT_FALSE(graphs.ceiling);
  const double gain = before.step_ns / tell(program(true)).step_ns;
  EXPECT_GT(gain, 1.03 * graphs.speedup);
  expect_sound(before, FixKind::graphs, gain);
}

TEST(VerdictOfKernels, LongKernelsLeaveGraphsTheirCeiling) {
  const Told told = tell([](Simulator& s, int) { layers(s, 60, 20'000, 40'000); });
  EXPECT_TRUE(find(told.fixes, FixKind::graphs)->ceiling);
}

// Inputs of 16 bits after TF32: half of the bytes, and up to twice the rate.
TEST(VerdictOfKernels, SixteenBitsGainBeyondTf32) {
  const auto program = [](bool half) {
    return [=](Simulator& s, int) {
      for (int i = 0; i < 20; ++i) {
        s.kernel(
            half ? "sm90_xmma_fprop_bf16bf16" : "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32",
            half ? 150'000 : 280'000);
        s.kernel("void at::native::vectorized_elementwise_kernel<4>", half ? 60'000 : 120'000);
      }
    };
  };
  const Told before = tell(program(false)), after = tell(program(true));
  ASSERT_FALSE(before.fixes.worth.empty());
  EXPECT_EQ(before.fixes.worth[0].kind, FixKind::mixed);
  expect_sound(before, FixKind::mixed, before.step_ns / after.step_ns);
  EXPECT_EQ(find(after.fixes, FixKind::mixed)->speedup, 1);
}

// The copies of a step's data have a stream of their own, whose waits for the computation do not
// show. They begin the step, but a step is no shorter than its work.
TEST(VerdictOfKernels, CopiesThatRunAheadDoNotShortenAStep) {
  const auto program = [](bool waits) {
    return [=](Simulator& s, int) {
      s.copy_in(2 << 20, 50'000, false, 3);
      for (int part = 1; part <= 2; ++part) {  // each waits: they steer what follows
        s.graph(part, 4'500'000);
        if (waits) s.synchronize();
        s.copy_out(4, 2'000, false, 5);
      }
      s.host(11'000'000);
    };
  };
  const Told before = tell(program(true));
  expect_sound(before, FixKind::syncs, before.step_ns / tell(program(false)).step_ns);
  const Fix& syncs = *find(before.fixes, FixKind::syncs);
  EXPECT_LT(std::max(syncs.speedup, syncs.high), before.step_ns / 9e6 * 1.05);
}

// A blocking copy at the end of much work waits for that.
TEST(VerdictOfKernels, AWaitForTheDevicesOwnWorkIsNoCopy) {
  const Told told = tell([](Simulator& s, int) {
    layers(s, 30, 1'000'000, 5'000);
    s.copy_out(1 << 20, 400'000, true);
    s.host(900'000);
  });
  EXPECT_EQ(told.verdict.id, "gpu_bound");
}

}  // namespace
}  // namespace saturate::observe
