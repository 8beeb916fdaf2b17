// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_tf32.h"

#include <cmath>

#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  bool ta, tb;
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class MatmulTf32 : public ::testing::TestWithParam<Case> {};

// Tf32 rounds each operand, to 2^-11 of it; k sums are cut off below 2^-23.
TEST_P(MatmulTf32, MatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const Context ctx = t.get();
  const auto padded = [&](int64_t columns) { return (columns + 3) / 4 * 4; };
  const int64_t lda = padded(c.ta ? c.m : c.k), ldb = padded(c.tb ? c.k : c.n),
                ldd = (c.n + 1) / 2 * 2 + 2;
  constexpr DType f32 = DType::f32;
  const auto va = testing::random_values((c.ta ? c.k : c.m) * lda, f32, 1),
             vb = testing::random_values((c.tb ? c.n : c.k) * ldb, f32, 2),
             vc = testing::random_values(c.m * ldd, f32, 3),
             vbias = testing::random_values(c.n, f32, 4);
  const Guarded a(t.stream, f32, va), b(t.stream, f32, vb), before(t.stream, f32, vc),
      bias(t.stream, f32, vbias);
  Guarded d(t.stream, f32, c.m * ldd);
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
                        .ta = c.ta ? Transpose::yes : Transpose::no,
                        .tb = c.tb ? Transpose::yes : Transpose::no,
                        .alpha = c.alpha,
                        .beta = c.beta,
                        .allow_tf32 = true};
  const Fit fit = matmul_tf32_cuda_fits(ctx, args);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_tf32_cuda(ctx, args);
  const auto got = d.values();
  const auto first = d.bytes();
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double p = va[static_cast<size_t>(c.ta ? k * lda + i : i * lda + k)] *
                         vb[static_cast<size_t>(c.tb ? j * ldb + k : k * ldb + j)];
        sum += p;
        magnitude += std::fabs(p);
      }
      const double more = (c.bias ? vbias[static_cast<size_t>(j)] : 0) +
                          c.beta * (c.beta != 0 ? vc[static_cast<size_t>(i * ldd + j)] : 0);
      const double expected = c.alpha * sum + more, is = got[static_cast<size_t>(i * ldd + j)];
      ASSERT_LE(std::fabs(is - expected), (0x1.01p-10 + (static_cast<double>(c.k) + 4) * 0x1p-23) *
                                                  std::fabs(c.alpha) * magnitude +
                                              0x1p-22 * std::fabs(more))
          << "at (" << i << ", " << j << "): " << is << " for " << expected;
    }
    for (int64_t j = c.n; j < ldd; ++j)
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * ldd + j)])) << "wrote beyond column " << j;
  }
  matmul_tf32_cuda(ctx, args);
  EXPECT_EQ(first, d.bytes()) << "two runs differ";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulTf32,
    ::testing::Values(Case{"forward", false, true, 256, 256, 128},
                      Case{"forward_one", false, true, 1, 2, 1},
                      Case{"forward_odd", false, true, 301, 521, 203, 0.5f, 0.0f, true},
                      Case{"forward_beta", false, true, 130, 72, 640, 1.0f, 1.0f},
                      Case{"forward_many", false, true, 2304, 1104, 40},
                      Case{"input", false, false, 256, 256, 128},
                      Case{"input_odd", false, false, 333, 201, 301, 1.0f, 0.5f},
                      Case{"weight", true, false, 256, 256, 128},
                      Case{"weight_odd", true, false, 135, 263, 1411, 1.0f, 1.0f},
                      Case{"both", true, true, 201, 309, 1111}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(MatmulTf32Fit, RefusesATooSmallWorkspace) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  Context ctx = t.get();
  ctx.workspace_bytes = 300 * 320 * 4 - 1;
  const MatmulArgs args{
      .m = 300, .n = 300, .k = 300, .lda = 300, .ldb = 300, .ldd = 300, .allow_tf32 = true};
  EXPECT_STREQ(matmul_tf32_cuda_fits(ctx, args).reason,
               "the workspace has no room for a transposed copy");
}

}  // namespace
}  // namespace saturate::kernels
