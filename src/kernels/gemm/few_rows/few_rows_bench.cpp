// SPDX-License-Identifier: Apache-2.0
// Products of few rows as a step of generating text takes them: chains in a CUDA graph, every
// product with weights of its own, so that they come from memory (cold) or, with few of them, from
// L2 (warm). One JSON line for a product and a candidate, microseconds a product, the median of 15
// graphs. usage: saturate_few_rows_bench [--all] [--quick]
//   --all    every plan of our own, to choose from
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "kernels/gemm/few_rows/matmul_few_rows.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/testing/bench.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kChain = 24;
constexpr size_t kCold = size_t{200} << 20;  // bytes of weights: four times L2

struct Bench {
  Stream stream{Device{DeviceKind::cuda, 0}};
  Buffer workspace{stream.device(), kWorkspaceBytes};
  Context ctx() const {
    return {stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  }

  double microseconds(const std::function<void(int)>& body) const {
    return testing::graph_microseconds(ctx(), kChain, body);
  }
};

void product(const Bench& bench, int64_t m, int64_t n, int64_t k, bool cold, bool all) {
  const auto weight = static_cast<size_t>(n * k) * 2;
  const auto sets = static_cast<int>(
      std::clamp(cold ? (kCold + weight - 1) / weight : size_t{1}, size_t{1}, size_t{kChain}));
  const Buffer x = testing::random_bf16(bench.stream, m * k),
               w = testing::random_bf16(bench.stream, sets * n * k);
  const Buffer bias = testing::random_bf16(bench.stream, n),
               y(bench.stream.device(), static_cast<size_t>(m * n) * 2);
  const auto args = [&](int i) {
    return MatmulArgs{.a = x.data(),
                      .b = w.as<char>() + static_cast<size_t>(i % sets) * weight,
                      .c = y.data(),
                      .d = y.data(),
                      .bias = bias.data(),
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
  const Context ctx = bench.ctx();
  const auto say = [&](const std::string& name, double us) {
    fmt::print(
        "{{\"m\":{},\"n\":{},\"k\":{},\"weights\":\"{}\",\"kernel\":\"{}\",\"us\":{:.2f},\"gb_s\":{"
        ":.0f}}}\n",
        m, n, k, cold ? "cold" : "warm", name, us, static_cast<double>(weight) / us / 1e3);
    std::fflush(stdout);
  };
  say("cublaslt", bench.microseconds([&](int i) { matmul_cublaslt_cuda(ctx, args(i)); }));
  if (const Fit fit = matmul_wgmma_cuda_fits(ctx, args(0)))
    say("wgmma", bench.microseconds([&](int i) { matmul_wgmma_cuda(ctx, args(i)); }));
  if (!matmul_few_rows_cuda_fits(ctx, args(0))) return;
  const few_rows::Plan own = few_rows::plan_for(args(0), capability_of(ctx).multiprocessors);
  const auto name = [](const few_rows::Plan& p) {
    return fmt::format("few_rows {}x{}, k by {}", p.rows8, p.columns8, p.warps_k);
  };
  say("chosen " + name(own),
      bench.microseconds([&](int i) { matmul_few_rows_run(ctx, args(i), own); }));
  for (const int columns8 : {1, 2, 4}) {
    for (const int warps_k : {1, 2, 4, 8}) {
      if (!all || (own.rows8 == 8 && columns8 == 4)) continue;
      const few_rows::Plan p{own.rows8, columns8, warps_k};
      say(name(p), bench.microseconds([&](int i) { matmul_few_rows_run(ctx, args(i), p); }));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool all = false, quick = false;
  for (int i = 1; i < argc; ++i) {
    all = all || std::strcmp(argv[i], "--all") == 0;
    quick = quick || std::strcmp(argv[i], "--quick") == 0;
  }
  const Bench bench;
  // base, the tiny student, GPT-2 124M, a Llama of 1B: projections, feed-forward layers, outputs.
  constexpr int64_t kShapes[][2] = {
      {512, 512},   {1536, 512},  {2048, 512},    {512, 2048},  {10000, 512}, {768, 768},
      {2304, 768},  {3072, 768},  {768, 3072},    {50257, 768}, {2048, 2048}, {3072, 2048},
      {8192, 2048}, {2048, 8192}, {128256, 2048}, {1024, 1024}, {4096, 1024}, {1024, 4096}};
  for (const auto& [n, k] : kShapes) {
    for (const int64_t m : {1, 8, 16, 32, 64}) {
      if (quick && m != 1 && m != 16) continue;
      product(bench, m, n, k, true, all);
      if (n * k < 8 << 20) product(bench, m, n, k, false, all);
    }
  }
  return 0;
}
