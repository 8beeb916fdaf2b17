// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  DType type;
  Transpose ta, tb;
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
};

class MatmulWgmma : public ::testing::TestWithParam<Case> {};

// Every plan of a problem against sums in double precision. Any order of k fp32 additions, rounded
// to nearest or cut off, stays within k 2^-23 of the sum of magnitudes.
TEST_P(MatmulWgmma, EveryPlanMatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const bool ta = c.ta == Transpose::yes, tb = c.tb == Transpose::yes;
  const DType out = ta ? DType::f32 : c.type;
  const auto even = [](int64_t cols) { return (cols + 7) / 8 * 8 + 8; };
  const int64_t lda = even(ta ? c.m : c.k), ldb = even(tb ? c.k : c.n), ldd = even(c.n);
  const auto va = testing::random_values((ta ? c.k : c.m) * lda, c.type, 1),
             vb = testing::random_values((tb ? c.n : c.k) * ldb, c.type, 2),
             vc = testing::random_values(c.m * ldd, out, 3),
             vbias = testing::random_values(c.n, c.type, 4);
  const Guarded a(t.stream, c.type, va), b(t.stream, c.type, vb), before(t.stream, out, vc),
      bias(t.stream, c.type, vbias);
  Guarded d(t.stream, out, c.m * ldd);
  const MatmulArgs args{.a = a.data(),
                        .b = b.data(),
                        .c = before.data(),
                        .d = d.data(),
                        .bias = c.bias ? bias.data() : nullptr,
                        .m = c.m,
                        .n = c.n,
                        .k = c.k,
                        .lda = lda,
                        .ldb = ldb,
                        .ldc = ldd,
                        .ldd = ldd,
                        .ta = c.ta,
                        .tb = c.tb,
                        .ab_type = c.type,
                        .d_type = out,
                        .alpha = c.alpha,
                        .beta = c.beta};
  const Fit fit = matmul_wgmma_cuda_fits(t.get(), args);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  std::vector<double> expected, bound;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double p = va[static_cast<size_t>(ta ? k * lda + i : i * lda + k)] *
                         vb[static_cast<size_t>(tb ? j * ldb + k : k * ldb + j)];
        sum += p;
        magnitude += std::fabs(p);
      }
      const double more = (c.bias ? vbias[static_cast<size_t>(j)] : 0) +
                          c.beta * (c.beta != 0 ? vc[static_cast<size_t>(i * ldd + j)] : 0);
      expected.push_back(c.alpha * sum + more);
      bound.push_back(0x1p-23 * (static_cast<double>(c.k) + 4) *
                          (std::fabs(c.alpha) * magnitude + std::fabs(more)) +
                      epsilon_of(out) * std::fabs(expected.back()));
    }
  }
  for (const WgmmaPlan& plan : wgmma_plans(t.get(), args)) {
    fill_bytes(t.stream, d.data(), 0xFF, static_cast<size_t>(d.count()) * size_of(out));
    matmul_wgmma_run(t.get(), args, plan);
    const auto got = d.values();
    for (int64_t i = 0; i < c.m; ++i) {
      for (int64_t j = 0; j < c.n; ++j) {
        const auto e = static_cast<size_t>(i * c.n + j);
        ASSERT_LE(std::fabs(got[static_cast<size_t>(i * ldd + j)] - expected[e]), bound[e])
            << name_of(plan) << " at (" << i << ", " << j
            << "): " << got[static_cast<size_t>(i * ldd + j)] << " for " << expected[e];
      }
      for (int64_t j = c.n; j < ldd; ++j) {
        ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * ldd + j)]))
            << name_of(plan) << " wrote beyond column " << c.n;
      }
    }
    const auto first = d.bytes();
    matmul_wgmma_run(t.get(), args, plan);
    EXPECT_EQ(first, d.bytes()) << name_of(plan) << ": two runs differ";
  }
}

constexpr Transpose no = Transpose::no, yes = Transpose::yes;
constexpr DType bf16 = DType::bf16, f16 = DType::f16;
INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulWgmma,
    ::testing::Values(Case{"forward", bf16, no, yes, 256, 256, 128},
                      Case{"forward_one", bf16, no, yes, 1, 8, 1},
                      Case{"forward_odd", bf16, no, yes, 301, 520, 203, 0.5f, 0.0f, true},
                      Case{"forward_beta", bf16, no, yes, 130, 72, 640, 1.0f, 1.0f},
                      Case{"forward_f16", f16, no, yes, 257, 392, 96, 1.0f, 0.0f, true},
                      Case{"forward_many", bf16, no, yes, 2304, 1104, 40},
                      Case{"input", bf16, no, no, 256, 256, 128},
                      Case{"input_odd", bf16, no, no, 333, 200, 301, 1.0f, 0.5f},
                      Case{"input_f16", f16, no, no, 129, 264, 70},
                      Case{"weight", bf16, yes, no, 256, 256, 128},
                      Case{"weight_odd", bf16, yes, no, 201, 309, 1111},
                      Case{"weight_splits", bf16, yes, no, 136, 264, 4100, 1.0f, 1.0f},
                      Case{"weight_f16", f16, yes, no, 72, 130, 520, 0.25f, 1.0f}),
    [](const auto& i) { return std::string(i.param.name); });

// Rows beyond 2^31 elements of A and D: the last one must be right.
TEST(MatmulWgmmaFar, OffsetsBeyondTwoToThe31) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t m = 33000, n = 64, k = 64, ld = 65600;  // 33000 * 65600 > 2^31
  if (device_info({DeviceKind::cuda, 0}).free_bytes <
      static_cast<size_t>(2 * m * ld * 2) + (size_t{1} << 30))
    GTEST_SKIP() << "too little memory";
  const Buffer a(t.stream.device(), static_cast<size_t>(m * ld) * 2),
      d(t.stream.device(), static_cast<size_t>(m * ld) * 2);
  const auto row = testing::random_values(k, bf16, 7),
             weights = testing::random_values(n * k, bf16, 8);
  const Guarded last(t.stream, bf16, row), b(t.stream, bf16, weights);
  copy_on_device(t.stream, a.as<char>() + (m - 1) * ld * 2, last.data(),
                 static_cast<size_t>(k) * 2);
  const MatmulArgs args{.a = a.data(),
                        .b = b.data(),
                        .c = d.data(),
                        .d = d.data(),
                        .m = m,
                        .n = n,
                        .k = k,
                        .lda = ld,
                        .ldb = k,
                        .ldc = ld,
                        .ldd = ld,
                        .tb = yes,
                        .ab_type = bf16,
                        .d_type = bf16};
  const Fit fit = matmul_wgmma_cuda_fits(t.get(), args);
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_wgmma_cuda(t.get(), args);
  Guarded result(t.stream, bf16, n);
  copy_on_device(t.stream, result.data(), d.as<char>() + (m - 1) * ld * 2,
                 static_cast<size_t>(n) * 2);
  const auto got = result.values();
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0, magnitude = 0;
    for (int64_t i = 0; i < k; ++i) {
      const double p = row[static_cast<size_t>(i)] * weights[static_cast<size_t>(j * k + i)];
      sum += p;
      magnitude += std::fabs(p);
    }
    EXPECT_LE(std::fabs(got[static_cast<size_t>(j)] - sum),
              0x1p-23 * 68 * magnitude + epsilon_of(bf16) * std::fabs(sum));
  }
}

}  // namespace
}  // namespace saturate::kernels
