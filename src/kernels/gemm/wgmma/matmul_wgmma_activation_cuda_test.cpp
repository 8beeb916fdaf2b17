// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <cmath>

#include "kernels/gemm/epilogue_reference.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  DType type;
  ActivationKind activation;
  bool keep, bias;
  int64_t m, n, k;
};

class MatmulWgmmaActivation : public ::testing::TestWithParam<Case> {};

TEST_P(MatmulWgmmaActivation, MatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t ldk = (c.k + 7) / 8 * 8, ldn = c.n + 8;
  const auto va = testing::random_values(c.m * ldk, c.type, 1),
             vb = testing::random_values(c.n * ldk, c.type, 2, 0.2),
             vbias = testing::random_values(c.n, c.type, 3);
  const Guarded a(t.stream, c.type, va), b(t.stream, c.type, vb), bias(t.stream, c.type, vbias);
  const Guarded d(t.stream, c.type, c.m * ldn), aux(t.stream, c.type, c.m * ldn);
  MatmulArgs x{.a = a.data(),
               .b = b.data(),
               .d = d.data(),
               .bias = c.bias ? bias.data() : nullptr,
               .m = c.m,
               .n = c.n,
               .k = c.k,
               .lda = ldk,
               .ldb = ldk,
               .ldd = ldn,
               .tb = Transpose::yes,
               .ab_type = c.type,
               .d_type = c.type};
  x.epilogue = {.kind = EpilogueKind::activation,
                .activation = c.activation,
                .aux = c.keep ? aux.data() : nullptr,
                .ld_aux = ldn};
  const Fit fit = matmul_wgmma_activation_cuda_fits(t.get(), x);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_wgmma_activation_cuda(t.get(), x);
  const auto first = d.bytes(), first_aux = aux.bytes();
  const ReferenceProduct r = reference_product(x, va, vb, {}, vbias, {});
  // The reference's bound holds for rounded additions; these cut off, k instead of its square root.
  const double k = static_cast<double>(c.k), cut = (k + 4) / (std::sqrt(k) + 3);
  const auto got = d.values(), kept = aux.values();
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < ldn; ++j) {
      const auto at = static_cast<size_t>(i * ldn + j), e = static_cast<size_t>(i * c.n + j);
      if (j >= c.n || !c.keep) {
        ASSERT_TRUE(std::isnan(kept[at])) << "aux written at (" << i << ", " << j << ")";
      } else {
        ASSERT_LE(std::fabs(kept[at] - r.aux[e]), cut * r.aux_bound[e]) << i << ", " << j;
      }
      if (j >= c.n) {
        ASSERT_TRUE(std::isnan(got[at])) << "d written at (" << i << ", " << j << ")";
      } else {
        ASSERT_LE(std::fabs(got[at] - r.d[e]), cut * r.d_bound[e]) << i << ", " << j;
      }
    }
  }
  matmul_wgmma_activation_cuda(t.get(), x);
  EXPECT_EQ(first, d.bytes());
  EXPECT_EQ(first_aux, aux.bytes());
}

constexpr DType bf16 = DType::bf16, f16 = DType::f16;
constexpr auto relu = ActivationKind::relu, tanh = ActivationKind::gelu_tanh,
               erf = ActivationKind::gelu_erf;
INSTANTIATE_TEST_SUITE_P(Cases, MatmulWgmmaActivation,
                         ::testing::Values(Case{"relu", bf16, relu, true, true, 256, 256, 128},
                                           Case{"relu_alone", bf16, relu, false, false, 129, 264,
                                                70},
                                           Case{"tanh_odd", bf16, tanh, true, true, 301, 520, 203},
                                           Case{"erf", bf16, erf, true, false, 70, 136, 64},
                                           Case{"relu_f16", f16, relu, false, true, 40, 8, 33},
                                           Case{"tanh_f16", f16, tanh, true, true, 130, 72, 64},
                                           Case{"erf_f16", f16, erf, true, true, 257, 392, 96}),
                         [](const auto& i) { return std::string(i.param.name); });

}  // namespace
}  // namespace saturate::kernels
