// SPDX-License-Identifier: Apache-2.0
// The tensor-core products of training, ours against the best of cuBLASLt's first algorithms, in
// one process: every candidate runs in every round, operands rotate past L2, medians. One JSON
// line a product. usage:
//   saturate_gemm_bench [--quick] [--trace] [--shape forward|input|weight M N K]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/testing/bench.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kPeers = 12;                     // algorithms of cuBLASLt
constexpr size_t kRotate = size_t{160} << 20;  // bytes of operands before one is used again: 3 L2

struct Product {
  const char* form;
  int64_t m, n, k;  // of the product itself
};

struct Candidate {
  std::string name;
  std::function<void(const MatmulArgs&)> run;
  std::vector<double> ms;
  double median() {
    std::nth_element(ms.begin(), ms.begin() + static_cast<std::ptrdiff_t>(ms.size() / 2), ms.end());
    return ms[ms.size() / 2];
  }
};

double measure(const Context& ctx, const Stream& stream, const Product& p, bool quick, bool trace) {
  const bool weight = !std::strcmp(p.form, "weight"), forward = !std::strcmp(p.form, "forward");
  const size_t operands = static_cast<size_t>(p.m * p.k + p.n * p.k) * 2;
  const size_t sets = std::clamp<size_t>(kRotate / operands + 1, 1, 16);
  std::vector<Buffer> a, b;
  for (size_t i = 0; i < sets; ++i) {
    a.push_back(testing::random_bf16(stream, p.m * p.k + static_cast<int64_t>(i) * 8));
    b.push_back(testing::random_bf16(stream, p.n * p.k + static_cast<int64_t>(i) * 8));
  }
  const Buffer d(stream.device(), static_cast<size_t>(p.m * p.n) * (weight ? 4 : 2));
  size_t at = 0;
  const auto args = [&] {
    at = (at + 1) % sets;
    return MatmulArgs{.a = a[at].as<char>() + at * 16,
                      .b = b[at].as<char>() + at * 16,
                      .c = d.data(),
                      .d = d.data(),
                      .m = p.m,
                      .n = p.n,
                      .k = p.k,
                      .lda = weight ? p.m : p.k,
                      .ldb = forward ? p.k : p.n,
                      .ldc = p.n,
                      .ldd = p.n,
                      .ta = weight ? Transpose::yes : Transpose::no,
                      .tb = forward ? Transpose::yes : Transpose::no,
                      .ab_type = DType::bf16,
                      .d_type = weight ? DType::f32 : DType::bf16};
  };
  std::vector<Candidate> all;
  for (const std::string& config : matmul_cublaslt_configurations(ctx, args(), kPeers)) {
    all.push_back(
        {"cuBLASLt " + config,
         [&ctx, config](const MatmulArgs& x) { matmul_cublaslt_configured(ctx, x, config); },
         {}});
  }
  const size_t ours = all.size();
  const auto plans = wgmma_plans(ctx, args());
  for (size_t i = 0; i < plans.size() && i < (quick ? 8u : 24u); ++i) {
    all.push_back({name_of(plans[i]),
                   [&ctx, plan = plans[i]](const MatmulArgs& x) { matmul_wgmma_run(ctx, x, plan); },
                   {}});
  }
  const double flops =
      2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const int launches = std::max(2, static_cast<int>(1e-3 / (flops / 600e12)));
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  for (int round = -1; round < (quick ? 5 : 9); ++round) {
    for (Candidate& c : all) {
      begin.record(stream);
      for (int i = 0; i < launches; ++i) c.run(args());
      end.record(stream);
      stream.synchronize();
      if (round >= 0) c.ms.push_back(Event::elapsed_ms(begin, end) / launches);
    }
  }
  const auto best_of = [&](size_t from, size_t to) {
    size_t which = from;
    for (size_t i = from + 1; i < to; ++i) {
      if (all[i].median() < all[which].median()) which = i;
    }
    return which;
  };
  const double first = all[0].median(), peer = all[best_of(0, ours)].median();
  const double chosen = all[ours].median();
  const size_t best = best_of(ours, all.size());
  if (trace) {
    for (Candidate& c : all)
      fmt::print("    {:<40} {:7.1f} TFLOP/s\n", c.name, flops / c.median() / 1e9);
  }
  fmt::print(
      R"({{"what":"gemm","form":"{}","m":{},"n":{},"k":{},"cublaslt_first_tflops":{:.1f},)"
      R"("cublaslt_tflops":{:.1f},"chosen_tflops":{:.1f},"ratio":{:.3f},"chosen":"{}","best_ratio":{:.3f},"best":"{}"}})"
      "\n",
      p.form, p.m, p.n, p.k, flops / first / 1e9, flops / peer / 1e9, flops / chosen / 1e9,
      peer / chosen, all[ours].name, peer / all[best].median(), all[best].name);
  std::fflush(stdout);
  return peer / chosen;
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, trace = false;
  Product only{nullptr, 0, 0, 0};
  for (int i = 1; i < argc; ++i) {
    quick |= !std::strcmp(argv[i], "--quick");
    trace |= !std::strcmp(argv[i], "--trace");
    if (!std::strcmp(argv[i], "--shape") && i + 4 < argc) {
      only = {argv[i + 1], std::atoll(argv[i + 2]), std::atoll(argv[i + 3]),
              std::atoll(argv[i + 4])};
    }
  }
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_gemm_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  const Buffer workspace(stream.device(), kWorkspaceBytes);
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  if (only.form != nullptr) {
    measure(ctx, stream, only, quick, trace);
    return 0;
  }
  double log_sum = 0;
  int count = 0;
  // y (rows, out) = x (rows, in) w^T of the models' layers, and both gradients of each.
  for (const auto& [rows, out, in] : {std::array<int64_t, 3>{16384, 3072, 1024},
                                      {16384, 4096, 1024},
                                      {16384, 1024, 4096},
                                      {32768, 768, 3072},
                                      {32768, 3072, 768},
                                      {32768, 50304, 768},
                                      {25088, 512, 2048},
                                      {25088, 2048, 512},
                                      {25088, 32000, 512}}) {
    for (const Product& p :
         {Product{"forward", rows, out, in}, {"input", rows, in, out}, {"weight", out, in, rows}}) {
      log_sum += std::log(measure(ctx, stream, p, quick, trace));
      ++count;
    }
  }
  fmt::print(R"({{"what":"gemm geometric mean over training shapes","ratio":{:.4f},"products":{}}})"
             "\n",
             std::exp(log_sum / count), count);
  for (const int64_t s : {2048, 4096, 8192}) {
    for (const char* form : {"forward", "input", "weight"})
      measure(ctx, stream, {form, s, s, s}, quick, trace);
  }
}
