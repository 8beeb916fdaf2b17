// SPDX-License-Identifier: Apache-2.0
// Gradients that are added up over several batches before the weights change.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

// A model of `layers`, forward and backward, `batches` times before the optimizer; kernels of `ns`. Where gradients
// are added to what is there, each layer has a kernel more. Products differ from batch to batch, as lengths do.
Step training(int batches, int64_t ns, int layers = 12, int64_t host_ns = 12'000) {
  return [=](Simulator& s, int step) {
    for (int b = 0; b < batches; ++b) {
      s.kernel("void at::native::vectorized_gather_kernel<16, long>(char*, c", ns);
      for (int l = 0; l < layers; ++l)
        for (const char* name : {"layer_norm_kernel", "", "gelu_kernel", ""}) {
          s.host(host_ns);
          const int tile = 64 * (1 + (step + b + l) % 3);
          s.kernel(*name ? name : "sm90_gemm_bf16bf16_" + std::to_string(tile), ns);
        }
      s.kernel("softmax_kernel", ns);
      for (int l = 0; l < layers; ++l)
        for (const char* name : {"layer_norm_backward_kernel", "", "gelu_backward_kernel", ""}) {
          s.host(host_ns);
          s.kernel(*name ? name : "sm90_gemm_bf16bf16_64", ns);
          if (b > 0 && *name == 0) s.kernel("add_to_gradient", ns);
        }
    }
    for (int i = 0; i < 6; ++i) s.kernel("multi_tensor_apply_kernel", 40'000);
  };
}

void in_torch(Trace& t) { t.framework = "PyTorch"; }

TEST(MicroBatches, AreOfferedAsOneBatch) {
  const Told before = tell(training(8, 4'000), in_torch),
             after = tell(training(1, 8 * 4'000), in_torch);
  const Fix* const f = find(before.fixes, FixKind::micro_batches);
  ASSERT_NE(f, nullptr);
  EXPECT_NE(f->evidence.find("after 8 micro-batches"), std::string::npos) << f->evidence;
  EXPECT_NE(f->action.find("8 times as large"), std::string::npos) << f->action;
  expect_sound(before, FixKind::micro_batches, before.step_ns / after.step_ns);
  EXPECT_EQ(before.verdict.id, "launch_bound");
  EXPECT_EQ(find(after.fixes, FixKind::micro_batches)->speedup, 1);
}

// Kernels that fill the device take as long in one batch as in several.
TEST(MicroBatches, BringNothingToADeviceThatIsBusy) {
  const Told before = tell(training(4, 300'000), in_torch);
  EXPECT_EQ(find(before.fixes, FixKind::micro_batches)->speedup, 1);
}

TEST(MicroBatches, AreNeitherLayersNorTheTimeStepsOfALayer) {
  EXPECT_EQ(find(tell(training(1, 4'000, 48), in_torch).fixes, FixKind::micro_batches)->speedup, 1);
  const Told recurrent = tell([](Simulator& s, int) {
    for (const char* cell : {"elemWiseRNNcell", "LSTM_elementWise_bp1_backward"})
      for (int t = 0; t < 64; ++t) {
        s.kernel("sm90_gemm_bf16bf16", 6'000);
        s.kernel(cell, 2'000);
      }
    for (int i = 0; i < 3; ++i) s.kernel("multi_tensor_apply_kernel", 40'000);
  });
  EXPECT_EQ(find(recurrent.fixes, FixKind::micro_batches)->speedup, 1);
}

// Two optimizers that take turns, as in adversarial training.
TEST(MicroBatches, AreNotSeveralUpdates) {
  const Told told = tell([](Simulator& s, int step) {
    for (int k = 0; k < 4; ++k) training(1, 4'000)(s, step);
  });
  EXPECT_EQ(find(told.fixes, FixKind::micro_batches)->speedup, 1);
}

// A graph does not make time steps of a recurrent layer one.
TEST(Graphs, DoNotJoinTheStepsOfARecurrentLayer) {
  const auto high = [](const char* cell) {
    const Told told = tell([=](Simulator& s, int) {
      for (int t = 0; t < 200; ++t) {
        s.host(5'000);
        s.kernel("sm90_gemm_bf16bf16", 7'000);
        s.kernel(cell, 2'000);
      }
    });
    const Fix& f = *find(told.fixes, FixKind::graphs);
    return std::max(f.speedup, f.high);
  };
  EXPECT_LT(high("void elemWiseRNNcell<float, float, float, (cudnnRNNMode_t)2"), 3);
  EXPECT_GT(high("gelu_kernel"), 3);
}

// Nor does it promise more than can be of a loop over short operations.
TEST(Graphs, OfALoopPromiseNoMoreThan64Times) {
  const Told told = tell([](Simulator& s, int) {
    for (int i = 0; i < 3'000; ++i) {
      s.host(20'000);
      s.kernel("scatter_add_kernel", 2'000);
    }
    s.kernel("sm90_gemm_bf16bf16", 30'000);
  });
  const Fix& f = *find(told.fixes, FixKind::graphs);
  EXPECT_GT(f.high, 20);
  EXPECT_LE(f.high, 64);
}

}  // namespace
}  // namespace saturate::observe
