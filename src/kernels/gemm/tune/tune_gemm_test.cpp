// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/tune_gemm.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/gemm/matmul_plan.h"
#include "kernels/gemm/tune/nvrtc.h"
#include "kernels/gemm/tune/tune_problem.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::TestContext;

GemmKey f32_key(int64_t m, int64_t n, int64_t k) {
  return {.ab_type = DType::f32, .d_type = DType::f32, .aligned = true, .m = m, .n = n, .k = k};
}

// On the CPU: what the tuner accepts and what it refuses.
TEST(TuneProblem, AcceptsTheProductAndRefusesEverythingElse) {
  const TestContext t(Device{});
  const Context ctx = t.get();
  for (const bool accumulates : {false, true}) {
    for (const bool transposed : {false, true}) {
      GemmKey key = f32_key(300, 52, 64);
      key.accumulates = accumulates;
      key.ta = transposed ? Transpose::yes : Transpose::no;
      key.tb = transposed ? Transpose::no : Transpose::yes;
      key.aligned = !transposed;
      key.bias = transposed;
      const TuneProblem problem(ctx, t.stream, key, 0);
      EXPECT_EQ(problem.check([&](const MatmulArgs& x) { matmul(ctx, x); }), "");
      EXPECT_NE(problem.check([](const MatmulArgs&) {}), "") << "nothing written";
      EXPECT_NE(problem.check([&](const MatmulArgs& x) {
        MatmulArgs less = x;
        less.k -= 1;
        matmul(ctx, less);
      }),
                "")
          << "one term short";
      EXPECT_NE(problem.check([&](const MatmulArgs& x) {
        MatmulArgs less = x;
        less.m -= 1;
        matmul(ctx, less);
      }),
                "")
          << "the last row is missing";
      EXPECT_NE(problem.check([&](const MatmulArgs& x) {
        MatmulArgs other = x;
        other.beta = accumulates ? 0.0f : 1.0f;
        matmul(ctx, other);
      }),
                "")
          << "C read or not";
    }
  }
}

// cuBLASLt rounds A B to 16 bits before it adds C: seen in products of this size on an H200.
TEST(TuneProblem, AcceptsWhatRunsWithoutATable) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const Context ctx = t.get();
  for (const DType type : {DType::bf16, DType::f16}) {
    GemmKey key = f32_key(2048, 512, 512);
    key.ab_type = key.d_type = type;
    key.accumulates = true;
    const TuneProblem problem(ctx, t.stream, key, 0);
    EXPECT_EQ(problem.check([&](const MatmulArgs& x) { matmul(ctx, x); }), "");
    EXPECT_NE(problem.check([&](const MatmulArgs& x) {
      MatmulArgs less = x;
      less.k -= 8;
      matmul(ctx, less);
    }),
              "")
        << "eight terms short";
  }
}

TEST(TuneGemm, FindsAWinnerThatPlansThenRun) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Device gpu{DeviceKind::cuda, 0};
  const TestContext t(gpu);
  const Context ctx = t.get();
  const GemmKey key = f32_key(512, 256, 128);
  GemmTable table;
  table.set(key, {"sgemm_tiled_nvrtc", "64x64x16 thread 8x4 warp 32x32 stages 3", 1, 1});
  const ConfiguredImpl* const tiled = find_configured("sgemm_tiled_nvrtc");
  ASSERT_NE(tiled, nullptr);
  const TuneProblem problem(ctx, t.stream, key, 0);
  const auto product = [&](const GemmTable& choices) {
    KernelOptions options;
    options.gemm_table = std::make_shared<GemmTable>(choices);
    plan_matmul(ctx, options, problem.first()).run(ctx, problem.first());
    std::vector<float> d(512 * 256);
    copy_to_host(t.stream, d.data(), problem.first().d, d.size() * sizeof(float));
    t.stream.synchronize();
    return d;
  };
  if (!nvrtc_fits()) GTEST_SKIP() << "no NVRTC";
  ASSERT_EQ(tiled->ready(ctx, problem.first(), table.find(key)->config).reason, nullptr);
  EXPECT_EQ(problem.check([&](const MatmulArgs& x) {
    tiled->prepared(ctx, x, table.find(key)->config).launch(ctx, x);
  }),
            "");
  const std::vector<float> tuned = product(table), again = product(table);
  EXPECT_EQ(std::memcmp(tuned.data(), again.data(), tuned.size() * sizeof(float)), 0);
  // A table that names what this build lacks, or what cannot run, changes nothing.
  const std::vector<float> plain = product({});
  for (const char* config : {"", "nonsense", "1024x1024x8 thread 16x8 warp 64x64 stages 4"}) {
    for (const char* impl : {"sgemm_tiled_nvrtc", "matmul_cublaslt_cuda", "no such thing"}) {
      GemmTable odd;
      odd.set(key, {impl, config, 1, 1});
      const std::vector<float> d = product(odd);
      EXPECT_EQ(std::memcmp(plain.data(), d.data(), d.size() * sizeof(float)), 0)
          << impl << " " << config;
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
