// SPDX-License-Identifier: Apache-2.0
// The activation in the product against the product alone and against two kernels, bf16, medians of
// interleaved rounds, operands rotated past L2. One JSON line a shape and activation.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

Buffer random_operand(const Stream& s, int64_t count) {
  std::mt19937 rng(5);
  std::vector<uint16_t> host(static_cast<size_t>(count));
  for (uint16_t& x : host)  // bf16 of magnitude 1/2 to 2, either sign
    x = static_cast<uint16_t>((rng() & 0x80FF) + 0x3F00);
  Buffer b(s.device(), host.size() * 2);
  copy_to_device(s, b.data(), host.data(), b.bytes());
  s.synchronize();
  return b;
}

using Way = std::pair<const char*, std::function<void()>>;

// All ways take turns, six launches each: medians of eleven rounds behind three that warm up.
void print_times(const Stream& stream, const char* what, int64_t m, int64_t n, int64_t k,
                 ActivationKind kind, std::span<const Way> all) {
  std::vector<std::vector<float>> ms(all.size());
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  for (int round = -3; round < 11; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      begin.record(stream);
      for (int repeat = 0; repeat < 6; ++repeat) all[i].second();
      end.record(stream);
      stream.synchronize();
      if (round >= 0) ms[i].push_back(static_cast<float>(Event::elapsed_ms(begin, end) / 6));
    }
  }
  std::string line =
      fmt::format(R"({{"what":"{}","m":{},"n":{},"k":{},"activation":"{}")", what, m, n, k,
                  kind == ActivationKind::relu        ? "relu"
                  : kind == ActivationKind::gelu_tanh ? "gelu_tanh"
                                                      : "gelu_erf");
  for (size_t i = 0; i < all.size(); ++i) {
    std::sort(ms[i].begin(), ms[i].end());
    line += fmt::format(R"(,"{}_us":{:.1f})", all[i].first, ms[i][ms[i].size() / 2] * 1000);
  }
  fmt::print("{}}}\n", line);
}

void measure(const Context& ctx, const Stream& stream, ActivationKind kind, int64_t m, int64_t n,
             int64_t k) {
  constexpr size_t kSets = 3;
  std::vector<Buffer> a, w, d, aux;
  for (size_t i = 0; i < kSets; ++i) {
    a.push_back(random_operand(stream, m * k));
    w.push_back(random_operand(stream, n * k));
    d.emplace_back(stream.device(), static_cast<size_t>(m * n) * 2);
    aux.emplace_back(stream.device(), static_cast<size_t>(m * n) * 2);
  }
  const Buffer bias = random_operand(stream, n);
  size_t at = 0;
  const auto args = [&](bool with_bias) {
    at = (at + 1) % kSets;
    return MatmulArgs{.a = a[at].data(),
                      .b = w[at].data(),
                      .c = d[at].data(),
                      .d = d[at].data(),
                      .bias = with_bias ? bias.data() : nullptr,
                      .m = m,
                      .n = n,
                      .k = k,
                      .lda = k,
                      .ldb = k,
                      .ldc = n,
                      .ldd = n,
                      .tb = Transpose::yes,
                      .ab_type = DType::bf16,
                      .d_type = DType::bf16};
  };
  const bool relu = kind == ActivationKind::relu;
  const auto fused = [&](bool keep, bool with_bias, bool ping_pong = false, bool slopes = false) {
    MatmulArgs x = args(with_bias);
    x.epilogue = {.kind = EpilogueKind::activation,
                  .activation = kind,
                  .aux = keep ? aux[at].data() : nullptr,
                  .ld_aux = keep && relu ? n / 64 : n,
                  .slopes = slopes && !relu,
                  .bits = keep && relu};
    matmul_wgmma_activation_run(ctx, x, ping_pong);
  };
  const std::array<Way, 13> all = {
      {{"plain",
        [&] {
          matmul_wgmma_run(ctx, args(false), {0, 1, 8});
        }},
       {"bias",
        [&] {
          matmul_wgmma_run(ctx, args(true), {0, 1, 8});
        }},
       {"residual",
        [&] {
          MatmulArgs x = args(false);
          x.c = aux[at].data(), x.beta = 1.0f;
          matmul_wgmma_run(ctx, x, {0, 1, 8});
        }},
       {"activation", [&] { fused(false, false); }},
       {"bias_activation", [&] { fused(false, true); }},
       {"bias_activation_aux", [&] { fused(true, true); }},
       {"bias_activation_ping_pong", [&] { fused(false, true, true); }},
       {"bias_activation_aux_ping_pong", [&] { fused(true, true, true); }},
       // of relu, which keeps its slopes as bits, the same as the line before
       {"bias_activation_slopes", [&] { fused(true, true, true, true); }},
       {"bias_ping_pong",
        [&] {
          matmul_wgmma_run(ctx, args(true), {1, 1, 8});
        }},
       {"bias_256x192",
        [&] {
          matmul_wgmma_run(ctx, args(true), {2, 1, 8});
        }},
       {"cublaslt_bias", [&] { matmul_cublaslt_cuda(ctx, args(true)); }},
       {"cublaslt_bias_then_activation", [&] {
          const MatmulArgs x = args(true);
          matmul_cublaslt_cuda(ctx, x);
          activation_forward(ctx, {.kind = kind,
                                   .x = x.d,
                                   .y = aux[at].data(),
                                   .rows = m,
                                   .cols = n,
                                   .dtype = DType::bf16,
                                   .rng = {}});
        }}}};
  print_times(stream, "gemm activation", m, n, k, kind, all);
}

// The input gradient of the product behind the activation: with slopes and column sums inside, and as a
// product, the activation's backward pass and column sums.
void measure_backward(const Context& ctx, const Stream& stream, ActivationKind kind, int64_t m,
                      int64_t n, int64_t k) {
  constexpr size_t kSets = 3;
  std::vector<Buffer> d_y, w, d_x, given, d_given;
  for (size_t i = 0; i < kSets; ++i) {
    d_y.push_back(random_operand(stream, m * k));
    w.push_back(random_operand(stream, n * k));
    given.push_back(random_operand(stream, m * n));
    d_x.emplace_back(stream.device(), static_cast<size_t>(m * n) * 2);
    d_given.emplace_back(stream.device(), static_cast<size_t>(m * n) * 2);
  }
  const Buffer sums(stream.device(), static_cast<size_t>(n) * 4);
  ColumnSumArgs column{.rows = m, .cols = n, .ld = n, .dtype = DType::bf16};
  const Buffer partial(stream.device(),
                       static_cast<size_t>(column_sum_scratch_bytes(ctx.device, column)));
  size_t at = 0;
  const auto args = [&] {
    at = (at + 1) % kSets;
    return MatmulArgs{.a = d_y[at].data(),
                      .b = w[at].data(),
                      .c = d_x[at].data(),
                      .d = d_x[at].data(),
                      .m = m,
                      .n = n,
                      .k = k,
                      .lda = k,
                      .ldb = n,
                      .ldc = n,
                      .ldd = n,
                      .ab_type = DType::bf16,
                      .d_type = DType::bf16};
  };
  const bool relu = kind == ActivationKind::relu;
  const auto inside = [&](bool with_sums, bool ping_pong, bool slopes = false) {
    MatmulArgs x = args();
    x.epilogue = {.kind = EpilogueKind::derivative,
                  .activation = kind,
                  .aux = given[at].data(),
                  .ld_aux = relu ? n / 64 : n,
                  .column_sum = with_sums ? sums.as<float>() : nullptr,
                  .slopes = slopes && !relu,
                  .bits = relu};
    matmul_wgmma_derivative_run(ctx, x, ping_pong);
  };
  const auto behind = [&] {
    activation_backward(ctx, {.forward = {.kind = kind,
                                          .x = given[at].data(),
                                          .rows = m,
                                          .cols = n,
                                          .dtype = DType::bf16,
                                          .rng = {}},
                              .d_y = d_x[at].data(),
                              .d_x = d_given[at].data()});
  };
  const std::array<Way, 9> all = {{{"plain",
                                    [&] {
                                      matmul_wgmma_run(ctx, args(), {0, 1, 8});
                                    }},
                                   {"slopes", [&] { inside(false, false); }},
                                   {"slopes_and_sums", [&] { inside(true, false); }},
                                   // gelu's exist by the tiles above only, and run again here
                                   {"slopes_ping_pong", [&] { inside(false, true); }},
                                   {"slopes_and_sums_ping_pong", [&] { inside(true, true); }},
                                   {"kept_slopes_and_sums", [&] { inside(true, true, true); }},
                                   {"ping_pong",
                                    [&] {
                                      matmul_wgmma_run(ctx, args(), {1, 1, 8});
                                    }},
                                   {"cublaslt", [&] { matmul_cublaslt_cuda(ctx, args()); }},
                                   {"cublaslt_then_slopes_then_sums", [&] {
                                      matmul_cublaslt_cuda(ctx, args());
                                      behind();
                                      column.x = d_given[at].data(), column.out = sums.data(),
                                      column.partial = partial.data();
                                      column_sum(ctx, column);
                                    }}}};
  print_times(stream, "gemm derivative", m, n, k, kind, all);
}

}  // namespace

int main() {
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_wgmma_activation_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  const Buffer workspace(stream.device(), kWorkspaceBytes);
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  for (const ActivationKind kind :
       {ActivationKind::relu, ActivationKind::gelu_tanh, ActivationKind::gelu_erf}) {
    measure(ctx, stream, kind, 25088, 2048, 512);
    measure(ctx, stream, kind, 32768, 3072, 768);
    measure_backward(ctx, stream, kind, 25088, 2048, 512);
    measure_backward(ctx, stream, kind, 32768, 3072, 768);
    for (const int64_t m : {2048, 4096, 8192}) {
      measure(ctx, stream, kind, m, 2048, 512);
      measure_backward(ctx, stream, kind, m, 2048, 512);
    }
  }
}
