// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_fp16x3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/testing/guarded.h"
#include "runtime/memory.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  Transpose ta, tb;
  int64_t m, n, k;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false;
};

class MatmulFp16x3 : public ::testing::TestWithParam<Case> {};

// fp32 values, not ones that fp16 could hold: r + r' 2^-12 of two of the helper's values.
std::vector<double> fp32_values(int64_t count, uint64_t key) {
  auto v = testing::random_values(count, DType::f32, key);
  const auto more = testing::random_values(count, DType::f32, key + 100);
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = static_cast<double>(static_cast<float>(v[i] + more[i] * 0x1p-12));
  return v;
}

// Parts hold 22 bits, which is 2^-22 for each operand; left out are products below 2^-22 of the whole, cut-off sums of
// 64 are added with rounding: (k + 6) 2^-23 of the sum of magnitudes bounds it, and k 2^-23 plain fp32.
TEST_P(MatmulFp16x3, IsWithinTheBoundOfPlainFp32) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const bool ta = c.ta == Transpose::yes, tb = c.tb == Transpose::yes;
  const int64_t lda = (ta ? c.m : c.k) + 3, ldb = (tb ? c.k : c.n) + 1, ldd = (c.n + 1) / 2 * 2 + 2;
  const auto va = fp32_values((ta ? c.k : c.m) * lda, 1),
             vb = fp32_values((tb ? c.n : c.k) * ldb, 2), vc = fp32_values(c.m * ldd, 3),
             vbias = fp32_values(c.n, 4);
  const Guarded a(t.stream, DType::f32, va), b(t.stream, DType::f32, vb),
      before(t.stream, DType::f32, vc), bias(t.stream, DType::f32, vbias);
  Guarded d(t.stream, DType::f32, c.m * ldd);
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
                        .alpha = c.alpha,
                        .beta = c.beta};
  const Fit fit = matmul_fp16x3_cuda_fits(t.get(), args);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  fill_bytes(t.stream, d.data(), 0xFF, static_cast<size_t>(d.count()) * 4);
  matmul_fp16x3_cuda(t.get(), args);
  const auto got = d.values();
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
      const double expected = c.alpha * sum + more;
      const double bound = 0x1p-23 * (static_cast<double>(c.k) + 6) *
                           (std::fabs(c.alpha) * magnitude + std::fabs(more));
      ASSERT_LE(std::fabs(got[static_cast<size_t>(i * ldd + j)] - expected), bound)
          << "at (" << i << ", " << j << ")";
    }
    for (int64_t j = c.n; j < ldd; ++j)
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * ldd + j)])) << "wrote beyond " << c.n;
  }
  const auto first = d.bytes();
  matmul_fp16x3_cuda(t.get(), args);
  EXPECT_EQ(first, d.bytes()) << "two runs differ";
}

constexpr Transpose no = Transpose::no, yes = Transpose::yes;
INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulFp16x3,
    ::testing::Values(Case{"forward", no, yes, 256, 256, 128},
                      Case{"forward_one", no, yes, 1, 2, 1},
                      Case{"forward_odd", no, yes, 301, 131, 203, 0.5f, 0.0f, true},
                      Case{"forward_beta", no, yes, 130, 72, 640, 1.0f, 1.0f},
                      Case{"input_odd", no, no, 333, 201, 301, 1.0f, 0.5f},
                      Case{"weight_odd", yes, no, 201, 309, 1111, 0.25f, 1.0f},
                      Case{"weight_aligned", yes, no, 256, 264, 1024},
                      Case{"forward_split", no, yes, 70, 130, 1500, 0.5f, 1.0f, true},
                      Case{"weight_split", yes, no, 64, 200, 2111, 1.0f, 1.0f}),
    [](const auto& i) { return std::string(i.param.name); });

// The largest value must not round up to an infinity; an infinity stays non-finite.
TEST(MatmulFp16x3Range, KeepsTheLargestValue) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const double largest = static_cast<double>(std::numeric_limits<float>::max());
  const Guarded a(t.stream, DType::f32, {largest, std::numeric_limits<double>::infinity(), 1.0}),
      b(t.stream, DType::f32, {1.0, 0.5});
  Guarded d(t.stream, DType::f32, int64_t{6});
  const MatmulArgs args{.a = a.data(),
                        .b = b.data(),
                        .c = d.data(),
                        .d = d.data(),
                        .m = 3,
                        .n = 2,
                        .k = 1,
                        .lda = 1,
                        .ldb = 1,
                        .ldc = 2,
                        .ldd = 2,
                        .tb = yes};
  if (const Fit fit = matmul_fp16x3_cuda_fits(t.get(), args); !fit) GTEST_SKIP() << fit.reason;
  matmul_fp16x3_cuda(t.get(), args);
  const auto got = d.values();
  EXPECT_EQ(got[0], largest);
  EXPECT_EQ(got[1], largest / 2);
  EXPECT_FALSE(std::isfinite(got[2]) || std::isfinite(got[3]));
  EXPECT_EQ(got[4], 1.0);
  EXPECT_EQ(got[5], 0.5);
}

// Rows of A and columns of B of any size count alike, and small values beside a large one. At 2^-29 of the largest 21
// bits are left: 2^-21 for a small value, 2^-22 for a large one and as much for what is left out make 2^-20.
TEST(MatmulFp16x3Range, ScalesRowsAndColumns) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const double r = 1 + 0x1p-20, small = 0x1p-29 * r;
  const std::vector<double> row_scales{1, 0x1p100, 0x1p-100, 0x1p-149},
      column_scales{0x1p20, 0x1p-20};
  const int64_t k = 3;
  for (const bool weight : {false, true}) {
    const int64_t m = 4, n = 2;
    std::vector<double> va(static_cast<size_t>(m * k)), vb(static_cast<size_t>(n * k));
    const double values_a[] = {r, small, 0}, values_b[] = {small, r, 1};
    for (int64_t kk = 0; kk < k; ++kk) {
      for (int64_t i = 0; i < m; ++i) {
        const double v = i == 3 ? (kk == 0 ? 1 : 0) : values_a[kk];
        va[static_cast<size_t>(weight ? kk * m + i : i * k + kk)] =
            v * row_scales[static_cast<size_t>(i)];
      }
      for (int64_t j = 0; j < n; ++j)
        vb[static_cast<size_t>(weight ? kk * n + j : j * k + kk)] =
            values_b[kk] * column_scales[static_cast<size_t>(j)];
    }
    const Guarded a(t.stream, DType::f32, va), b(t.stream, DType::f32, vb);
    Guarded d(t.stream, DType::f32, int64_t{m * n});
    const MatmulArgs args{.a = a.data(),
                          .b = b.data(),
                          .c = d.data(),
                          .d = d.data(),
                          .m = m,
                          .n = n,
                          .k = k,
                          .lda = weight ? m : k,
                          .ldb = weight ? n : k,
                          .ldc = n,
                          .ldd = n,
                          .ta = weight ? yes : no,
                          .tb = weight ? no : yes};
    if (const Fit fit = matmul_fp16x3_cuda_fits(t.get(), args); !fit) GTEST_SKIP() << fit.reason;
    matmul_fp16x3_cuda(t.get(), args);
    const auto got = d.values();
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const double both =
            row_scales[static_cast<size_t>(i)] * column_scales[static_cast<size_t>(j)];
        const double expected = both * (i == 3 ? small : 2 * r * small);
        const double tolerance = std::fabs(expected) * 0x1p-20 + 0x1p-149;
        EXPECT_NEAR(got[static_cast<size_t>(i * n + j)], expected, tolerance)
            << weight << " at (" << i << ", " << j << ")";
      }
    }
  }
}

TEST(MatmulFp16x3Range, RefusesAWorkspaceWithoutRoomForAPiece) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  Context ctx = t.get();
  const MatmulArgs args{.m = 4096, .n = 4096, .k = 4096, .lda = 4096, .ldb = 4096, .ldd = 4096};
  EXPECT_EQ(matmul_fp16x3_workspace(args), size_t{2} * 4 * (4096 * 4096 + 4096));
  ctx.workspace_bytes = size_t{8} << 20;
  EXPECT_FALSE(matmul_fp16x3_cuda_fits(ctx, args));
}

// Too little workspace for all parts: pieces of rows, and of k, give what the whole gives.
TEST(MatmulFp16x3Pieces, AgreeWithTheWhole) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t m = 4500, n = 264, k = 900;
  const auto va = fp32_values(m * k, 1), vb = fp32_values(n * k, 2), vc = fp32_values(m * n, 3),
             vbias = fp32_values(n, 4);
  const Guarded a(t.stream, DType::f32, va), b(t.stream, DType::f32, vb),
      c(t.stream, DType::f32, vc), bias(t.stream, DType::f32, vbias);
  Guarded d(t.stream, DType::f32, m * n);
  for (const bool weight : {false, true}) {
    const MatmulArgs args{.a = a.data(),
                          .b = b.data(),
                          .c = c.data(),
                          .d = d.data(),
                          .bias = bias.data(),
                          .m = m,
                          .n = n,
                          .k = k,
                          .lda = weight ? m : k,
                          .ldb = weight ? n : k,
                          .ldc = n,
                          .ldd = n,
                          .ta = weight ? yes : no,
                          .tb = weight ? no : yes,
                          .alpha = 0.5f,
                          .beta = 2.0f};
    Context ctx = t.get();
    if (const Fit fit = matmul_fp16x3_cuda_fits(ctx, args); !fit) GTEST_SKIP() << fit.reason;
    ASSERT_LE(matmul_fp16x3_workspace(args), ctx.workspace_bytes);
    matmul_fp16x3_cuda(ctx, args);
    const auto whole = d.values();
    // Both are within k 2^-23 of the sum of magnitudes: values up to 1, alpha 0.5, beta 2, a bias.
    const double bound = 2 * 0x1p-23 * (k + 6) * (0.5 * k + 3);
    // Room for B and 2048 rows of A; room for 256 values of k of both and not for B and 2048 rows.
    for (const size_t bytes : {size_t{10} << 20, size_t{6} << 20}) {
      ctx.workspace_bytes = bytes;
      fill_bytes(t.stream, d.data(), 0xFF, static_cast<size_t>(m * n) * 4);
      matmul_fp16x3_cuda(ctx, args);
      const auto got = d.values();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], whole[i], bound) << bytes << " at " << i;
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
