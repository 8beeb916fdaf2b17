// SPDX-License-Identifier: Apache-2.0
// fp32 products on bf16 tensor cores against cuBLASLt's fp32 and TF32: speed in one process, in
// turns, and error against double precision of 16 rows. One JSON line a cube. usage:
// saturate_fp16x3_bench
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <random>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/wgmma/matmul_fp16x3.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int64_t kRows = 16;  // that are checked

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& x : v) x = normal(rng);
  return v;
}

struct Candidate {
  const char* name;
  std::function<void()> run;
  std::vector<double> ms = {};
  double worst = 0, squares = 0;
};

void measure(const Stream& stream, int64_t n) {
  const auto a = normal_values(n * n, 1), b = normal_values(n * n, 2);
  const size_t bytes = a.size() * 4;
  const Buffer da(stream.device(), bytes), db(stream.device(), bytes), dd(stream.device(), bytes);
  copy_to_device(stream, da.data(), a.data(), bytes);
  copy_to_device(stream, db.data(), b.data(), bytes);
  MatmulArgs args{.a = da.data(),
                  .b = db.data(),
                  .c = dd.data(),
                  .d = dd.data(),
                  .m = n,
                  .n = n,
                  .k = n,
                  .lda = n,
                  .ldb = n,
                  .ldc = n,
                  .ldd = n,
                  .tb = Transpose::yes};
  MatmulArgs tf32 = args;
  tf32.allow_tf32 = true;
  const Buffer workspace(stream.device(), matmul_fp16x3_workspace(args));
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  if (const Fit fit = matmul_fp16x3_cuda_fits(ctx, args); !fit) {
    fmt::print(stderr, "saturate_fp16x3_bench: {}\n", fit.reason);
    std::exit(1);
  }
  std::array<Candidate, 3> all{{{"fp32", [&] { matmul_cublaslt_cuda(ctx, args); }},
                                {"fp16x3", [&] { matmul_fp16x3_cuda(ctx, args); }},
                                {"tf32", [&] { matmul_cublaslt_cuda(ctx, tf32); }}}};
  std::vector<double> expected(static_cast<size_t>(kRows * n));
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k)
        sum += static_cast<double>(a[static_cast<size_t>(i * n + k)]) *
               static_cast<double>(b[static_cast<size_t>(j * n + k)]);
      expected[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  for (Candidate& c : all) {
    std::vector<float> got(expected.size());
    c.run();
    copy_to_host(stream, got.data(), dd.data(), got.size() * 4);
    stream.synchronize();
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::fabs(static_cast<double>(got[i]) - expected[i]);
      c.worst = std::max(c.worst, error);
      c.squares += error * error;
    }
  }
  Event begin(stream.device(), Event::Timing::on), end(stream.device(), Event::Timing::on);
  const int launches = n > 4096 ? 2 : 8;
  for (int round = 0; round < 9; ++round) {
    for (Candidate& c : all) {
      begin.record(stream);
      for (int i = 0; i < launches; ++i) c.run();
      end.record(stream);
      stream.synchronize();
      c.ms.push_back(Event::elapsed_ms(begin, end) / launches);
    }
  }
  const double flops = 2.0 * std::pow(static_cast<double>(n), 3);
  fmt::print(R"({{"what":"gemm fp32 on tensor cores","m":{0},"n":{0},"k":{0})", n);
  for (Candidate& c : all) {
    std::nth_element(c.ms.begin(), c.ms.begin() + 4, c.ms.end());
    fmt::print(R"(,"{0}_tflops":{1:.1f},"{0}_worst_error":{2:.3g},"{0}_rms_error":{3:.3g})", c.name,
               flops / c.ms[4] / 1e9, c.worst,
               std::sqrt(c.squares / static_cast<double>(expected.size())));
  }
  fmt::print("}}\n");
  std::fflush(stdout);
}

}  // namespace

int main() {
  if (cuda_device_count() == 0) {
    fmt::print(stderr, "saturate_fp16x3_bench: no GPU\n");
    return 1;
  }
  const Stream stream({DeviceKind::cuda, 0});
  for (const int64_t n : {2048, 4096, 8192}) measure(stream, n);
}
