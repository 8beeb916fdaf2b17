// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "kernels/gemm/epilogue_reference.h"
#include "kernels/gemm/few_rows/matmul_few_rows.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using few_rows::Plan;
using testing::Guarded;
using testing::TestContext;

constexpr DType f16 = DType::f16, f32 = DType::f32, bf16 = DType::bf16;

struct Case {
  const char* name;
  int64_t m, n, k;
  DType ab = bf16, d = bf16;
  float alpha = 1.0f, beta = 0.0f;
  bool bias = false, other_c = false;
  int64_t pad = 0;  // added to every leading dimension
  EpilogueKind kind = EpilogueKind::plain;
  ActivationKind activation = ActivationKind::relu;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Operands with NaN behind every row of A and B, which no kernel may read, and where D is to come.
struct Problem {
  Problem(const TestContext& t, const Case& x)
      : c(x),
        a(t.stream, x.ab, rows_of(x.m, x.k, x.pad, x.ab, 1)),
        b(t.stream, x.ab, rows_of(x.n, x.k, x.pad, x.ab, 2)),
        other(t.stream, x.d, rows_of(x.m, x.n, x.pad, x.d, 3)),
        d(t.stream, x.d, rows_of(x.m, x.n, x.pad, x.d, x.beta != 0 && !x.other_c ? 3 : 0)),
        aux(t.stream, x.d, rows_of(x.m, x.n, x.pad, x.d, 0)),
        bias(t.stream, x.ab, testing::random_values(x.n, x.ab, 4)) {}

  static std::vector<double> rows_of(int64_t rows, int64_t cols, int64_t pad, DType type,
                                     uint64_t seed) {
    std::vector<double> all(static_cast<size_t>(rows * (cols + pad)), NAN);
    if (seed == 0) return all;
    const std::vector<double> values = testing::random_values(rows * cols, type, seed);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(values.begin() + r * cols, cols, all.begin() + r * (cols + pad));
    return all;
  }
  MatmulArgs args() const {
    Epilogue e{.kind = c.kind, .activation = c.activation};
    if (c.kind == EpilogueKind::activation) e.aux = aux.data(), e.ld_aux = c.n + c.pad;
    return {.a = a.data(),
            .b = b.data(),
            .c = c.other_c ? other.data() : d.data(),
            .d = d.data(),
            .bias = c.bias ? bias.data() : nullptr,
            .m = c.m,
            .n = c.n,
            .k = c.k,
            .lda = c.k + c.pad,
            .ldb = c.k + c.pad,
            .ldc = c.n + c.pad,
            .ldd = c.n + c.pad,
            .tb = Transpose::yes,
            .ab_type = c.ab,
            .d_type = c.d,
            .alpha = c.alpha,
            .beta = c.beta,
            .epilogue = e};
  }

  Case c;
  Guarded a, b, other, d, aux, bias;
};

void expect_matrix(const char* what, const std::vector<double>& got, int64_t ld, int64_t cols,
                   const std::vector<double>& want, const std::vector<double>& bound) {
  for (size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / ld, col = static_cast<int64_t>(i) % ld;
    if (col >= cols) {
      ASSERT_TRUE(std::isnan(got[i])) << what << " wrote beyond column " << cols;
      continue;
    }
    const auto q = static_cast<size_t>(row * cols + col);
    ASSERT_LE(std::fabs(got[i] - want[q]), bound[q])
        << what << " at (" << row << ", " << col << "): " << got[i] << " for " << want[q];
  }
}

// Every plan that a product of m rows can have, least rows first.
std::vector<Plan> plans_of(int64_t m) {
  std::vector<Plan> plans;
  for (const int rows8 : {1, 2, 4, 8})
    for (const int columns8 : {1, 2, 4})
      for (const int warps_k : {1, 2, 4, 8})
        if (8 * rows8 >= m && rows8 * columns8 < 32) plans.push_back({rows8, columns8, warps_k});
  return plans;
}

class MatmulFewRows : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulFewRows, MatchesDoublePrecision) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  const Case& c = GetParam();
  const Problem p(t, c);
  const MatmulArgs x = p.args();
  ASSERT_TRUE(matmul_few_rows_cuda_fits(t.get(), x));
  const auto c_before = (c.other_c ? p.other : p.d).values();
  const ReferenceProduct want =
      reference_product(x, p.a.values(), p.b.values(), c_before, p.bias.values(), p.aux.values());
  matmul_few_rows_cuda(t.get(), x);
  expect_matrix("d", p.d.values(), x.ldd, c.n, want.d, want.d_bound);
  if (c.kind == EpilogueKind::activation)
    expect_matrix("aux", p.aux.values(), x.ldd, c.n, want.aux, want.aux_bound);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulFewRows,
    ::testing::Values(Case{"one", 1, 1, 8}, Case{"one_row", 1, 512, 512, bf16, bf16, 1, 0, true},
                      Case{"odd", 5, 77, 200, bf16, bf16, 1, 0, true, false, 8},
                      Case{"residual", 8, 512, 2048, bf16, bf16, 1, 1, true, true},
                      Case{"adds", 9, 1000, 520, f16, f16, 0.5f, 1, true, false, 16},
                      Case{"to_f32", 16, 2050, 72, bf16, f32, -2, 0.5f, true, true},
                      Case{"short", 17, 96, 8, f16, f32},
                      Case{"rows_33", 33, 10000, 512, bf16, bf16, 1, 0, true},
                      Case{"rows_64", 64, 1416, 776, f16, f16, 1, 1, true, true, 8},
                      Case{"relu", 20, 2048, 512, bf16, bf16, 1, 0, true, false, 0,
                           EpilogueKind::activation},
                      Case{"gelu", 3, 3072, 768, f16, f16, 1, 1, true, true, 8,
                           EpilogueKind::activation, ActivationKind::gelu_tanh}),
    [](const auto& i) { return std::string(i.param.name); });

// Every plan against double precision, twice, and a row's bits against those in other company.
TEST(MatmulFewRowsPlans, AgreeAndRepeat) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  for (const int64_t m : {1, 8, 11, 30, 64}) {
    const Problem p(t, {"plans", m, 296, 1096, bf16, bf16, 1, 0, true});
    const MatmulArgs x = p.args();
    const ReferenceProduct want =
        reference_product(x, p.a.values(), p.b.values(), p.d.values(), p.bias.values(), {});
    std::map<int, std::vector<double>> by_warps;  // of the same order of sums
    for (const Plan& plan : plans_of(m)) {
      SCOPED_TRACE(std::to_string(plan.rows8) + " x " + std::to_string(plan.columns8) + " by " +
                   std::to_string(plan.warps_k));
      matmul_few_rows_run(t.get(), x, plan);
      const std::vector<double> got = p.d.values();
      expect_matrix("d", got, x.ldd, x.n, want.d, want.d_bound);
      matmul_few_rows_run(t.get(), x, plan);
      ASSERT_EQ(got, p.d.values()) << "two runs differ";
      if (plan.columns8 * plan.rows8 >= 8) continue;  // whose warps take k in other steps
      const auto [known, is_new] = by_warps.try_emplace(plan.warps_k, got);
      if (!is_new) {
        ASSERT_EQ(known->second, got) << "company changes a row's bits";
      }
    }
  }
}

}  // namespace
}  // namespace saturate::kernels
