// SPDX-License-Identifier: Apache-2.0
// The memory-bound kernels against the device's own copy rate. Not part of the fast tests: run with
// --gtest_also_run_disabled_tests --gtest_filter='Bandwidth.*'.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/norm/norm.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr int64_t kRows = 25088;  // 784 sentences of 32 tokens
constexpr int kArrays = 6;        // per set of buffers: kernels take them in turn
constexpr size_t kSetsBytes = size_t{1}
                              << 31;  // sets are rotated through so much: far above any cache

class Bench {
 public:
  Bench(int64_t cols, size_t element)
      : bytes_(static_cast<size_t>(kRows * cols) * element),
        sets_(std::max<size_t>(2, kSetsBytes / (kArrays * bytes_))),
        test_(kGpu),
        memory_(kGpu, sets_ * kArrays * bytes_) {
    fill_bytes(test_.stream, memory_.data(), 0x3C, memory_.bytes());
  }
  Context ctx() const { return test_.get(); }
  const Stream& stream() const { return test_.stream; }
  void* array(size_t set, size_t which) const {
    return memory_.as<char>() + (set * kArrays + which) * bytes_;
  }
  // Median milliseconds of a replayed graph of one call on each set of buffers, per call.
  double time(const std::function<void(size_t set)>& call) const {
    const Graph graph = Graph::capture(test_.stream, [&] {
      for (size_t s = 0; s < sets_; ++s) call(s);
    });
    std::vector<double> ms;
    Event begin(kGpu, Event::Timing::on), end(kGpu, Event::Timing::on);
    for (int i = 0; i < 12; ++i) {
      begin.record(test_.stream);
      graph.launch(test_.stream);
      end.record(test_.stream);
      end.synchronize();
      if (i >= 2) ms.push_back(Event::elapsed_ms(begin, end) / static_cast<double>(sets_));
    }
    std::nth_element(ms.begin(), ms.begin() + 5, ms.end());
    return ms[5];
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_, sets_;
  testing::TestContext test_;
  Buffer memory_;
};

struct Line {
  const char* name;
  int arrays;  // of rows * cols that move
  std::function<void(size_t)> call;
};

void report(int64_t cols) {
  const Bench b(cols, 2);
  Buffer weight(kGpu, static_cast<size_t>(cols) * 4), bias(kGpu, static_cast<size_t>(cols) * 4);
  Buffer mean(kGpu, kRows * 4), rstd(kGpu, kRows * 4), state(kGpu, 16);
  Buffer d_weight(kGpu, weight.bytes()), d_bias(kGpu, bias.bytes());
  for (const Buffer* p : {&weight, &bias, &mean, &rstd, &state}) {
    fill_bytes(b.stream(), p->data(), 0x3C, p->bytes());
  }
  const RngRef rng{state.as<uint64_t>(), 3};
  NormBackwardArgs sizes;
  sizes.cols = cols;
  sizes.dtype = DType::bf16;
  Buffer partial(kGpu, static_cast<size_t>(norm_backward_scratch_bytes(kGpu, sizes)));

  const auto norm = [&](bool branch, float p) {
    return [&, branch, p](size_t s) {
      norm_forward(b.ctx(), {.kind = NormKind::layer_norm,
                             .x = b.array(s, 0),
                             .branch = branch ? b.array(s, 1) : nullptr,
                             .sum = branch ? b.array(s, 2) : nullptr,
                             .weight = weight.data(),
                             .bias = bias.data(),
                             .y = b.array(s, 3),
                             .mean = mean.data(),
                             .rstd = rstd.data(),
                             .rows = kRows,
                             .cols = cols,
                             .dtype = DType::bf16,
                             .eps = 1e-5f,
                             .dropout = p,
                             .rng = rng});
    };
  };
  const auto norm_back = [&](bool branch, float p) {
    return [&, branch, p](size_t s) {
      norm_backward(b.ctx(), {.kind = NormKind::layer_norm,
                              .d_y = b.array(s, 0),
                              .d_sum = branch ? b.array(s, 1) : nullptr,
                              .sum = b.array(s, 2),
                              .weight = weight.data(),
                              .mean = mean.data(),
                              .rstd = rstd.data(),
                              .d_x = b.array(s, 3),
                              .d_branch = branch ? b.array(s, 4) : nullptr,
                              .d_weight = d_weight.data(),
                              .d_bias = d_bias.data(),
                              .accumulate = false,
                              .partial = partial.data(),
                              .rows = kRows,
                              .cols = cols,
                              .dtype = DType::bf16,
                              .dropout = p,
                              .rng = rng});
    };
  };
  const auto activation = [&](ActivationKind kind, bool gated, float p) {
    return [&, kind, gated, p](size_t s) {
      activation_forward(b.ctx(), {.kind = kind,
                                   .gated = gated,
                                   .x = b.array(s, 0),
                                   .y = b.array(s, 2),
                                   .rows = kRows,
                                   .cols = cols,
                                   .dtype = DType::bf16,
                                   .dropout = p,
                                   .rng = rng});
    };
  };
  const auto activation_back = [&](ActivationKind kind, bool gated, float p) {
    return [&, kind, gated, p](size_t s) {
      activation_backward(b.ctx(), {.forward = {.kind = kind,
                                                .gated = gated,
                                                .x = b.array(s, 0),
                                                .y = nullptr,
                                                .rows = kRows,
                                                .cols = cols,
                                                .dtype = DType::bf16,
                                                .dropout = p,
                                                .rng = rng},
                                    .d_y = b.array(s, 2),
                                    .d_x = b.array(s, 3)});
    };
  };
  constexpr float kP = 0.1f;
  const Line lines[] = {
      {"copy (cudaMemcpyAsync)", 2,
       [&](size_t s) { copy_on_device(b.stream(), b.array(s, 1), b.array(s, 0), b.bytes()); }},
      {"norm forward", 2, norm(false, 0)},
      {"norm forward, branch", 4, norm(true, 0)},
      {"norm forward, branch, dropout", 4, norm(true, kP)},
      {"norm backward", 3, norm_back(false, 0)},
      {"norm backward, branch", 5, norm_back(true, 0)},
      {"norm backward, branch, dropout", 5, norm_back(true, kP)},
      {"relu", 2, activation(ActivationKind::relu, false, 0)},
      {"relu, dropout", 2, activation(ActivationKind::relu, false, kP)},
      {"gelu_tanh", 2, activation(ActivationKind::gelu_tanh, false, 0)},
      {"gelu_erf", 2, activation(ActivationKind::gelu_erf, false, 0)},
      {"gated silu", 3, activation(ActivationKind::silu, true, 0)},
      {"relu backward", 3, activation_back(ActivationKind::relu, false, 0)},
      {"relu backward, dropout", 3, activation_back(ActivationKind::relu, false, kP)},
      {"gelu_tanh backward", 3, activation_back(ActivationKind::gelu_tanh, false, 0)},
      {"gelu_erf backward", 3, activation_back(ActivationKind::gelu_erf, false, 0)},
      {"gated silu backward", 5, activation_back(ActivationKind::silu, true, 0)},
      {"column_sum", 1,
       [&](size_t s) {
         column_sum(b.ctx(), {.x = b.array(s, 0),
                              .out = d_bias.data(),
                              .partial = partial.data(),
                              .rows = kRows,
                              .cols = cols,
                              .ld = cols,
                              .dtype = DType::bf16});
       }},
      {"add", 3, [&](size_t s) {
         add(b.ctx(), {.a = b.array(s, 0),
                       .b = b.array(s, 1),
                       .y = b.array(s, 2),
                       .count = kRows * cols,
                       .dtype = DType::bf16});
       }}};
  double copy_rate = 0;
  for (const Line& line : lines) {
    const double ms = b.time(line.call);
    const double rate = static_cast<double>(b.bytes()) * line.arrays / ms * 1e-9;  // TB/s
    if (copy_rate == 0) copy_rate = rate;
    std::printf("%6ld  %-32s %8.1f us  %5.2f TB/s  %4.0f%% of copy\n", static_cast<long>(cols),
                line.name, 1e3 * ms, rate, 100 * rate / copy_rate);
  }
}

TEST(Bandwidth, DISABLED_ReportsTheShareOfTheCopyRate) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  use_device(kGpu);
  for (const int64_t cols : {512, 1024, 2048}) report(cols);
}

}  // namespace
}  // namespace saturate::kernels
