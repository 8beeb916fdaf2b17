// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/bf16/matmul_bf16_cpu.h"

#include <bit>

#include "kernels/gemm/epilogue_reference.h"
#include "kernels/gemm/matmul_plan.h"
#include "kernels/testing/guarded.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  int64_t m, n, k;
  float beta = 0.0f;
  bool bias = false;
  int64_t pad = 0;  // added to every leading dimension
  EpilogueKind epilogue = EpilogueKind::plain;
  ActivationKind activation = ActivationKind::relu;
  bool keeps = false;  // what the activation is given
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// To the nearest, ties to even.
double rounded_to_bf16(double x) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(x));
  return static_cast<double>(
      std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u));
}

class MatmulBf16 : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!cpu_has_bf16()) GTEST_SKIP() << "this CPU has no AVX512-BF16";
  }
};

// Against double precision with the operands rounded first: what is left is the sums' rounding.
TEST_P(MatmulBf16, IsTheProductOfRoundedOperands) {
  const Case& c = GetParam();
  const TestContext t(Device{});
  const int before = cpu_threads();
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const int64_t lda = (ta ? c.m : c.k) + c.pad, ldb = (tb ? c.k : c.n) + c.pad;
      auto va = testing::random_values((ta ? c.k : c.m) * lda, DType::f32, 1),
           vb = testing::random_values((tb ? c.n : c.k) * ldb, DType::f32, 2);
      const auto vbias = testing::random_values(c.n, DType::f32, 3),
                 vd = testing::random_values(c.m * (c.n + c.pad), DType::f32, 4),
                 vaux = testing::random_values(c.m * c.n, DType::f32, 5);
      const Guarded a(t.stream, DType::f32, va), b(t.stream, DType::f32, vb),
          bias(t.stream, DType::f32, vbias), aux(t.stream, DType::f32, vaux);
      Guarded d(t.stream, DType::f32, c.m * (c.n + c.pad));
      for (double& x : va) x = rounded_to_bf16(x);
      for (double& x : vb) x = rounded_to_bf16(x);
      MatmulArgs x{.a = a.data(),
                   .b = b.data(),
                   .d = d.data(),
                   .bias = c.bias ? bias.data() : nullptr,
                   .m = c.m,
                   .n = c.n,
                   .k = c.k,
                   .lda = lda,
                   .ldb = ldb,
                   .ldc = c.n + c.pad,
                   .ldd = c.n + c.pad,
                   .ta = ta ? Transpose::yes : Transpose::no,
                   .tb = tb ? Transpose::yes : Transpose::no,
                   .beta = c.beta,
                   .allow_bf16 = true};
      const bool slope = c.epilogue == EpilogueKind::derivative;
      x.epilogue = {.kind = c.epilogue,
                    .activation = c.activation,
                    .aux = slope || c.keeps ? aux.data() : nullptr,
                    .ld_aux = c.n};
      const ReferenceProduct r = reference_product(x, va, vb, vd, vbias, vaux);
      std::vector<char> first;
      for (const int threads : {1, 2, 3}) {
        set_cpu_threads(threads);
        if (c.beta != 0) d.set(vd);
        const MatmulPlan plan = plan_matmul(t.get(), {}, x);
        ASSERT_EQ(plan.implementation, "matmul_bf16_cpu");
        plan.run(t.get(), x);
        const auto bits = d.bytes();
        if (first.empty()) first = bits;
        EXPECT_TRUE(bits == first) << threads << " threads";
      }
      const auto got = d.values(), kept = aux.values();
      // vdpbf16ps rounds after each of its two products, and the reference allows for sqrt(k) steps.
      for (int64_t e = 0; e < c.m * c.n; ++e) {
        const auto at = static_cast<size_t>(e), in = static_cast<size_t>(e / c.n * x.ldd + e % c.n);
        ASSERT_LE(std::fabs(got[in] - r.d[at]), 2 * r.d_bound[at]) << ta << tb << " at " << e;
        if (c.keeps) {
          ASSERT_LE(std::fabs(kept[at] - r.aux[at]), 2 * r.aux_bound[at]) << e;
        }
      }
      for (int64_t i = 0; i < c.m && c.pad > 0 && c.beta == 0; ++i) {
        ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * x.ldd + c.n)])) << "row " << i;
      }
    }
  }
  set_cpu_threads(before);
}

constexpr EpilogueKind kPlain = EpilogueKind::plain, kForward = EpilogueKind::activation,
                       kSlope = EpilogueKind::derivative;
INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulBf16,
    ::testing::Values(
        Case{"one_row", 1, 24, 1}, Case{"odd", 37, 53, 129, 1.0f, true},
        Case{"padded", 65, 31, 40, 0.0f, true, 5},
        Case{"two_blocks_of_k", 13, 70, 1027, 0.5f, true}, Case{"two_slices", 101, 577, 33},
        Case{"shared", 300, 260, 500}, Case{"relu", 98, 67, 35, 0, true, 0, kForward},
        Case{"relu_keeps", 7, 130, 530, 0, true, 0, kForward, ActivationKind::relu, true},
        Case{"gelu", 9, 40, 33, 0, true, 0, kForward, ActivationKind::gelu_tanh, true},
        Case{"relu_slope", 31, 90, 519, 0, false, 0, kSlope},
        Case{"gelu_slope", 31, 40, 21, 0, false, 0, kSlope, ActivationKind::gelu_tanh}),
    [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace saturate::kernels
