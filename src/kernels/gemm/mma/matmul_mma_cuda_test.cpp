// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "kernels/gemm/epilogue_reference.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  int64_t m, n, k;
  DType ab = DType::bf16, d = DType::bf16;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false, other_c = false, column_sum = false;
  int64_t pad = 0;  // added to every leading dimension
  int64_t batch = 1;
  EpilogueKind kind = EpilogueKind::plain;
  ActivationKind activation = ActivationKind::relu;
  bool slopes = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Rows of `cols` used and `ld` stored; `count` of them one after the other.
struct Matrix {
  Matrix(const TestContext& t, DType type, int64_t rows, int64_t cols, int64_t pad, int64_t count,
         uint64_t seed)
      : ld(cols + pad),
        stride(rows * ld),
        memory(t.stream, type,
               seed == 0 ? std::vector<double>(static_cast<size_t>(stride * count), NAN)
                         : testing::random_values(stride * count, type, seed)) {}
  std::vector<double> product(int64_t i) const {
    const auto all = memory.values();
    return {all.begin() + i * stride, all.begin() + (i + 1) * stride};
  }
  int64_t ld, stride;
  Guarded memory;
};

struct Problem {
  Problem(const TestContext& t, const Case& x, Transpose ta_, Transpose tb_)
      : c(x),
        ta(ta_ == Transpose::yes),
        tb(tb_ == Transpose::yes),
        e{.kind = x.kind, .activation = x.activation, .slopes = x.slopes},
        a(t, x.ab, ta ? x.k : x.m, ta ? x.m : x.k, x.pad, x.batch, 1),
        b(t, x.ab, tb ? wide() : x.k, tb ? x.k : wide(), x.pad, x.batch, 2),
        other(t, x.d, x.m, e.output_columns(x.n), x.pad, x.batch, 3),
        d(t, x.d, x.m, e.output_columns(x.n), x.pad, x.batch, x.beta != 0 && !x.other_c ? 3 : 0),
        aux(t, x.d, x.m, e.aux_columns(x.n), x.pad, 1, e.reads_aux() ? 5 : 0),
        bias(t.stream, x.ab, testing::random_values(wide(), x.ab, 4)),
        sums(t.stream, DType::f32, e.output_columns(x.n)) {
    if (x.kind != EpilogueKind::plain) e.aux = aux.memory.data(), e.ld_aux = aux.ld;
    if (x.column_sum) e.column_sum = sums.as<float>();
  }
  int64_t wide() const { return e.product_columns(c.n); }
  MatmulArgs args() const {
    return {.a = a.memory.data(),
            .b = b.memory.data(),
            .c = c.other_c ? other.memory.data() : d.memory.data(),
            .d = d.memory.data(),
            .bias = c.bias ? bias.data() : nullptr,
            .m = c.m,
            .n = c.n,
            .k = c.k,
            .lda = a.ld,
            .ldb = b.ld,
            .ldc = d.ld,
            .ldd = d.ld,
            .ta = ta ? Transpose::yes : Transpose::no,
            .tb = tb ? Transpose::yes : Transpose::no,
            .ab_type = c.ab,
            .d_type = c.d,
            .alpha = c.alpha,
            .beta = c.beta,
            .batch = c.batch,
            .stride_a = a.stride,
            .stride_b = b.stride,
            .stride_c = d.stride,
            .stride_d = d.stride,
            .epilogue = e};
  }

  Case c;
  bool ta, tb;
  Epilogue e;
  Matrix a, b, other, d, aux;
  Guarded bias, sums;
};

void expect_matrix(const char* what, const std::vector<double>& got, int64_t ld, int64_t cols,
                   const std::vector<double>& want, const std::vector<double>& bound, bool poison) {
  for (size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / ld, col = static_cast<int64_t>(i) % ld;
    if (col >= cols) {
      ASSERT_TRUE(!poison || std::isnan(got[i])) << what << " wrote beyond column " << cols;
      continue;
    }
    const auto q = static_cast<size_t>(row * cols + col);
    ASSERT_LE(std::fabs(got[i] - want[q]), bound[q])
        << what << " at (" << row << ", " << col << "): " << got[i] << " for " << want[q];
  }
}

class MatmulMma : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulMma, MatchesDoublePrecision) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const Case& c = GetParam();
  for (const Transpose ta : {Transpose::no, Transpose::yes}) {
    for (const Transpose tb : {Transpose::no, Transpose::yes}) {
      SCOPED_TRACE((ta == Transpose::yes ? "T" : "N") +
                   std::string(tb == Transpose::yes ? "T" : "N"));
      const Problem p(t, c, ta, tb);
      const MatmulArgs x = p.args();
      const Fit fit = matmul_mma_cuda_fits(t.get(), x);
      if (!fit) GTEST_SKIP() << fit.reason;
      const auto c_before = (c.other_c ? p.other : p.d).memory.values();
      matmul_mma_cuda(t.get(), x);
      const auto out = p.d.memory.bytes(), sums = p.sums.bytes(), aux = p.aux.memory.bytes();
      for (int64_t i = 0; i < c.batch; ++i) {
        const std::vector<double> old(c_before.begin() + i * p.d.stride,
                                      c_before.begin() + (i + 1) * p.d.stride);
        const ReferenceProduct want = reference_product(x, p.a.product(i), p.b.product(i), old,
                                                        p.bias.values(), p.aux.memory.values());
        expect_matrix("d", p.d.product(i), p.d.ld, p.e.output_columns(c.n), want.d, want.d_bound,
                      c.beta == 0 || c.other_c);
        if (p.e.writes_aux())
          expect_matrix("aux", p.aux.product(0), p.aux.ld, p.e.aux_columns(c.n), want.aux,
                        want.aux_bound, true);
        if (c.column_sum)
          expect_matrix("column sums", p.sums.values(), p.sums.count(), p.sums.count(),
                        want.column_sum, want.column_sum_bound, true);
        if (HasFatalFailure()) return;
      }
      if (c.beta != 0 && !c.other_c) continue;
      matmul_mma_cuda(t.get(), x);
      EXPECT_EQ(out, p.d.memory.bytes()) << "two runs differ";
      EXPECT_EQ(sums, p.sums.bytes()) << "two runs differ in column sums";
      EXPECT_EQ(aux, p.aux.memory.bytes()) << "two runs differ in aux";
    }
  }
}

constexpr DType f16 = DType::f16, f32 = DType::f32, bf16 = DType::bf16;
constexpr auto kRelu = ActivationKind::relu, kSilu = ActivationKind::silu;
constexpr auto kTanh = ActivationKind::gelu_tanh, kErf = ActivationKind::gelu_erf;
constexpr auto kActivation = EpilogueKind::activation, kGated = EpilogueKind::gated;
constexpr auto kDerivative = EpilogueKind::derivative;
constexpr auto kGatedDerivative = EpilogueKind::gated_derivative;

INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulMma,
    ::testing::Values(
        Case{"one", 1, 1, 1}, Case{"tile", 64, 64, 32}, Case{"odd", 37, 53, 129},
        Case{"odd_f16", 67, 129, 33, f16, f16, 0.5f, 1.0f, true},
        Case{"odd_to_f32", 65, 71, 40, bf16, f32, 1.0f, 0.5f, true, true},
        Case{"edges", 130, 72, 200, bf16, bf16, 1.0f, 0.0f, true},
        Case{"edges_padded", 72, 136, 104, f16, f32, -2.0f, 0.0f, false, false, false, 8},
        Case{"odd_padded", 33, 63, 47, bf16, bf16, 1.0f, 0.0f, true, false, false, 3},
        Case{"no_depth", 9, 7, 0, bf16, bf16, 1.0f, 2.0f, true, true},
        Case{"split", 64, 72, 4096, bf16, bf16, 0.125f, 0.0f, true},
        Case{"split_odd", 31, 45, 2085, f16, f32, 1.0f, 1.0f, true, true},
        Case{"large", 1544, 1416, 72, bf16, bf16, 1.0f, 1.0f, true, true},
        Case{"large_f16", 1416, 1672, 40, f16, f32},
        Case{"batch", 40, 72, 96, bf16, bf16, 1.0f, 1.0f, true, true, false, 0, 3},
        Case{"batch_odd", 19, 33, 35, f16, f16, 1.0f, 0.0f, true, false, false, 1, 5},
        Case{"relu", 70, 88, 64, bf16, bf16, 1, 0, true, false, false, 0, 1, kActivation, kRelu},
        Case{"gelu", 129, 64, 48, f16, f16, 1, 0, true, false, false, 8, 1, kActivation, kTanh},
        Case{"gelu_odd", 33, 45, 31, bf16, bf16, 1, 1, true, true, false, 0, 1, kActivation, kErf},
        Case{"gelu_split", 40, 64, 1024, bf16, bf16, 1, 1, true, true, false, 0, 1, kActivation,
             kErf},
        Case{"gated", 72, 88, 64, bf16, bf16, 1, 0, true, false, false, 0, 1, kGated, kSilu},
        Case{"gated_odd", 37, 43, 55, f16, f32, 1, 1, true, true, false, 1, 1, kGated, kTanh},
        Case{"gated_split", 24, 40, 2048, bf16, bf16, 1, 0, false, false, false, 0, 1, kGated,
             kSilu},
        Case{"gated_sums", 200, 72, 64, bf16, bf16, 1, 0, true, false, true, 0, 1, kGated, kErf},
        Case{"sums", 200, 136, 96, bf16, f32, 1, 1, false, true, true},
        Case{"sums_odd", 65, 131, 33, f16, f16, 1, 0, true, false, true},
        Case{"d_relu", 72, 88, 64, bf16, bf16, 1, 0, false, false, true, 0, 1, kDerivative, kRelu},
        Case{"d_gelu", 130, 61, 70, f16, f16, 1, 0, false, false, true, 0, 1, kDerivative, kTanh},
        Case{"gelu_slopes", 129, 64, 48, f16, f16, 1, 0, true, false, false, 8, 1, kActivation,
             kTanh, true},
        Case{"erf_slopes_odd", 33, 45, 31, bf16, bf16, 1, 1, true, true, false, 0, 1, kActivation,
             kErf, true},
        Case{"d_slopes", 130, 61, 70, f16, f16, 1, 0, false, false, true, 0, 1, kDerivative, kTanh,
             true},
        Case{"d_erf_split", 48, 64, 2048, bf16, f32, 1, 0, false, false, false, 0, 1, kDerivative,
             kErf},
        Case{"d_gated", 72, 88, 64, bf16, bf16, 1, 0, false, false, true, 0, 1, kGatedDerivative,
             kSilu},
        Case{"d_gated_odd", 39, 77, 50, f16, f16, 1, 0, false, false, true, 1, 1, kGatedDerivative,
             kTanh},
        Case{"d_gated_large", 1432, 1544, 64, bf16, bf16, 1, 0, false, false, true, 0, 1,
             kGatedDerivative, kSilu}),
    [](const auto& i) { return std::string(i.param.name); });

TEST(MatmulMmaRules, SaysWhyItDoesNotFit) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  MatmulArgs x{.m = 1, .n = 1, .k = 1, .ab_type = bf16, .d_type = bf16};
  const auto reason = [&] { return std::string(matmul_mma_cuda_fits(t.get(), x).reason); };
  x.batch = 65536;
  EXPECT_EQ(reason(), "more than 65535 products (third grid dimension)");
  x.batch = 1, x.m = int64_t{1} << 31;
  EXPECT_EQ(reason(), "a size is above 2^29 (32-bit positions)");
  x.m = int64_t{1} << 28, x.n = int64_t{1} << 28;
  EXPECT_EQ(reason(), "more than 2^31 tiles (grid size)");
  float sums = 0;
  x.n = 64, x.epilogue.column_sum = &sums;
  EXPECT_EQ(reason(), "the workspace is too small for the column sums of all rows of tiles");
  x.ab_type = x.d_type = f32;
  EXPECT_EQ(reason(), "a and b are neither bf16 nor f16 (tensor-core operands)");
}

}  // namespace
}  // namespace saturate::kernels
