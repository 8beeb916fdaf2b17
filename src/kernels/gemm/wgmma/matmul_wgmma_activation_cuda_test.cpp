// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <cmath>
#include <cstring>
#include <tuple>
#include <vector>

#include "kernels/device/fold_columns.h"
#include "kernels/gemm/epilogue_reference.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

// A matrix of bits as the kernels keep them: of (i, j) the word, of 64 columns, and the bit in it.
size_t word_of(int64_t i, int64_t j, int64_t ld) { return static_cast<size_t>(i * ld + j / 64); }
int bit_of(int64_t j) {
  const int64_t c = j % 64, quarter = c % 8 / 2;
  return static_cast<int>(quarter * 16 + c % 2 * 8 + c / 8);
}

std::vector<uint64_t> words_in(const std::vector<char>& bytes) {
  std::vector<uint64_t> words(bytes.size() / 8);
  std::memcpy(words.data(), bytes.data(), words.size() * 8);
  return words;
}

struct Case {
  const char* name;
  DType type;
  ActivationKind activation;
  bool keep, bias;
  int64_t m, n, k;
  bool slopes = false;
};

// Each in tiles that consumers share and in tiles of one consumer, where both exist.
class MatmulWgmmaActivation : public ::testing::TestWithParam<std::tuple<Case, bool>> {};

TEST_P(MatmulWgmmaActivation, MatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto& [c, ping_pong] = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t ldk = (c.k + 7) / 8 * 8, ldn = c.n + 8;
  const auto va = testing::random_values(c.m * ldk, c.type, 1),
             vb = testing::random_values(c.n * ldk, c.type, 2, 0.2),
             vbias = testing::random_values(c.n, c.type, 3);
  const Guarded a(t.stream, c.type, va), b(t.stream, c.type, vb), bias(t.stream, c.type, vbias);
  const bool bits = c.keep && c.activation == ActivationKind::relu;
  const int64_t ld_aux = bits ? c.n / 64 + 1 : ldn;
  const Guarded d(t.stream, c.type, c.m * ldn),
      aux(t.stream, bits ? DType::i32 : c.type, c.m * ld_aux * (bits ? 2 : 1));
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
                .ld_aux = ld_aux,
                .slopes = c.slopes,
                .bits = bits};
  const Fit fit = matmul_wgmma_activation_cuda_fits(t.get(), x);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_wgmma_activation_run(t.get(), x, ping_pong);
  const auto first = d.bytes(), first_aux = aux.bytes();
  const std::vector<uint64_t> untouched =
      words_in(Guarded(t.stream, DType::i32, c.m * ld_aux * 2).bytes());
  MatmulArgs plain = x;
  plain.epilogue.bits = false;
  plain.epilogue.ld_aux = ldn;
  const ReferenceProduct r = reference_product(plain, va, vb, {}, vbias, {});
  // The reference's bound holds for rounded additions; these cut off, k instead of its square root.
  const double k = static_cast<double>(c.k), cut = (k + 4) / (std::sqrt(k) + 3);
  const auto got = d.values(),
             kept = bits ? std::vector<double>(got.size(), std::nan("")) : aux.values();
  const std::vector<uint64_t> words = bits ? words_in(first_aux) : std::vector<uint64_t>{};
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < ldn; ++j) {
      const auto at = static_cast<size_t>(i * ldn + j), e = static_cast<size_t>(i * c.n + j);
      if (bits && j < c.n) {
        const bool bit = words[word_of(i, j, ld_aux)] >> bit_of(j) & 1;
        const bool sure = std::fabs(r.aux[e]) > cut * r.aux_bound[e];
        ASSERT_TRUE(!sure || bit == (r.aux[e] > 0)) << i << ", " << j;
      } else if (j >= c.n || !c.keep) {
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
  for (int64_t i = 0; bits && i < c.m; ++i) {
    const size_t beyond = word_of(i, c.n, ld_aux);
    ASSERT_EQ(words[beyond], untouched[beyond]) << "bits written beyond row " << i;
  }
  matmul_wgmma_activation_run(t.get(), x, ping_pong);
  EXPECT_EQ(first, d.bytes());
  EXPECT_EQ(first_aux, aux.bytes());
}

constexpr DType bf16 = DType::bf16, f16 = DType::f16;
constexpr auto relu = ActivationKind::relu, tanh = ActivationKind::gelu_tanh,
               erf = ActivationKind::gelu_erf;
template <class Param>
std::string name_of(const ::testing::TestParamInfo<Param>& i) {
  return std::string(std::get<0>(i.param).name) + (std::get<1>(i.param) ? "_ping_pong" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulWgmmaActivation,
    ::testing::Combine(
        ::testing::Values(Case{"relu", bf16, relu, true, true, 256, 256, 128},
                          Case{"relu_odd", bf16, relu, true, true, 301, 448, 203},
                          Case{"relu_many", bf16, relu, true, true, 9000, 832, 64},
                          Case{"relu_bits_f16", f16, relu, true, false, 130, 64, 64},
                          Case{"relu_alone", bf16, relu, false, false, 129, 264, 70},
                          Case{"tanh_odd", bf16, tanh, true, true, 301, 520, 203},
                          Case{"tanh_many", bf16, tanh, true, true, 9000, 776, 64},
                          Case{"erf", bf16, erf, true, false, 70, 136, 64},
                          Case{"relu_f16", f16, relu, false, true, 40, 8, 33},
                          Case{"tanh_f16", f16, tanh, true, true, 130, 72, 64},
                          Case{"erf_f16", f16, erf, true, true, 257, 392, 96},
                          Case{"tanh_slopes", bf16, tanh, true, true, 301, 520, 203, true},
                          Case{"tanh_slopes_many", bf16, tanh, true, true, 9000, 776, 520, true},
                          Case{"erf_slopes", bf16, erf, true, false, 129, 72, 64, true},
                          Case{"tanh_slopes_f16", f16, tanh, true, false, 130, 200, 64, true},
                          Case{"erf_slopes_f16", f16, erf, true, true, 257, 392, 96, true}),
        ::testing::Bool()),
    [](const auto& i) { return name_of(i); });

struct SlopeCase {
  const char* name;
  DType type;
  ActivationKind activation;
  bool sum, add;
  int64_t m, n, k;
  bool slopes = false;
};

class MatmulWgmmaDerivative : public ::testing::TestWithParam<std::tuple<SlopeCase, bool>> {};

TEST_P(MatmulWgmmaDerivative, MatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const auto& [c, ping_pong] = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t ldk = (c.k + 7) / 8 * 8, ldn = c.n + 8;
  const auto va = testing::random_values(c.m * ldk, c.type, 1),
             vb = testing::random_values(c.k * ldn, c.type, 2, 0.2),
             vaux = testing::random_values(c.m * ldn, c.type, 3),
             old = testing::random_values(c.n, DType::f32, 4);
  const bool bits = c.activation == ActivationKind::relu;
  const int64_t ld_aux = bits ? c.n / 64 + 1 : ldn;
  std::vector<uint64_t> words(bits ? static_cast<size_t>(c.m * ld_aux) : 0);
  for (int64_t i = 0; bits && i < c.m; ++i)
    words[word_of(i, c.n, ld_aux)] = ~uint64_t{0};  // poison
  for (int64_t i = 0; bits && i < c.m; ++i)
    for (int64_t j = 0; j < c.n; ++j)
      if (vaux[static_cast<size_t>(i * ldn + j)] > 0)
        words[word_of(i, j, ld_aux)] |= uint64_t{1} << bit_of(j);
  const Buffer packed(t.stream.device(), std::max<size_t>(8, words.size() * 8));
  copy_to_device(t.stream, packed.data(), words.data(), words.size() * 8);
  t.stream.synchronize();
  const Guarded a(t.stream, c.type, va), b(t.stream, c.type, vb), aux(t.stream, c.type, vaux);
  const Guarded d(t.stream, c.type, c.m * ldn), sums(t.stream, DType::f32, old);
  MatmulArgs x{.a = a.data(),
               .b = b.data(),
               .d = d.data(),
               .m = c.m,
               .n = c.n,
               .k = c.k,
               .lda = ldk,
               .ldb = ldn,
               .ldd = ldn,
               .ab_type = c.type,
               .d_type = c.type,
               .alpha = 0.5f};
  x.epilogue = {.kind = EpilogueKind::derivative,
                .activation = c.activation,
                .aux = bits ? const_cast<void*>(packed.data()) : aux.data(),
                .ld_aux = ld_aux,
                .column_sum = c.sum ? sums.as<float>() : nullptr,
                .add_to_column_sum = c.add,
                .slopes = c.slopes,
                .bits = bits};
  const Fit fit = matmul_wgmma_derivative_cuda_fits(t.get(), x);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_wgmma_derivative_run(t.get(), x, ping_pong);
  const auto first = d.bytes();
  const auto got = d.values(), summed = sums.values();
  MatmulArgs plain = x;
  plain.epilogue.bits = false;
  plain.epilogue.ld_aux = ldn;
  const ReferenceProduct r = reference_product(plain, va, vb, {}, {}, vaux);
  const double k = static_cast<double>(c.k), cut = (k + 4) / (std::sqrt(k) + 3);  // as above
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < ldn; ++j) {
      const auto at = static_cast<size_t>(i * ldn + j), e = static_cast<size_t>(i * c.n + j);
      if (j >= c.n) {
        ASSERT_TRUE(std::isnan(got[at])) << "d written at (" << i << ", " << j << ")";
      } else {
        ASSERT_LE(std::fabs(got[at] - r.d[e]), cut * r.d_bound[e]) << i << ", " << j;
      }
    }
  }
  for (int64_t j = 0; j < c.n; ++j) {
    const auto e = static_cast<size_t>(j);
    const double expected = c.sum ? r.column_sum[e] + (c.add ? old[e] : 0) : old[e];
    ASSERT_LE(std::fabs(summed[e] - expected),
              c.sum ? cut * r.column_sum_bound[e] + 1e-6 * std::fabs(old[e]) : 0.0)
        << "column " << j;
  }
  x.epilogue.add_to_column_sum = false;
  matmul_wgmma_derivative_run(t.get(), x, ping_pong);
  const auto once = sums.bytes();
  matmul_wgmma_derivative_run(t.get(), x, ping_pong);
  EXPECT_EQ(first, d.bytes());
  EXPECT_EQ(once, sums.bytes());
  if (!c.sum) return;
  // Sums that wait: nothing is written but their first stage, and then the same bits.
  const Guarded left(t.stream, DType::f32, c.n);
  const Guarded partial(t.stream, DType::f32,
                        (c.m + Epilogue::kSummedRows - 1) / Epilogue::kSummedRows * c.n);
  FoldList later;
  x.epilogue.column_sum = left.as<float>();
  x.epilogue.partial = partial.as<float>();
  x.epilogue.later = &later;
  matmul_wgmma_derivative_run(t.get(), x, ping_pong);
  for (const double v : left.values()) ASSERT_TRUE(std::isnan(v)) << "folded at once";
  ASSERT_EQ(later.jobs.size(), 1U);
  fold_columns_cuda(t.get(), later);
  EXPECT_EQ(once, left.bytes());
  static_cast<void>(partial.bytes());  // checks its guards
  EXPECT_EQ(first, d.bytes());
}

INSTANTIATE_TEST_SUITE_P(
    Cases, MatmulWgmmaDerivative,
    ::testing::Combine(
        ::testing::Values(SlopeCase{"relu", bf16, relu, true, false, 256, 256, 128},
                          SlopeCase{"relu_alone", bf16, relu, false, false, 129, 320, 70},
                          SlopeCase{"relu_odd_adds", bf16, relu, true, true, 301, 576, 203},
                          SlopeCase{"relu_very_many", bf16, relu, true, true, 9000, 832, 520},
                          SlopeCase{"relu_many", bf16, relu, true, false, 5000, 1024, 96},
                          SlopeCase{"tanh", bf16, tanh, true, false, 70, 136, 64},
                          SlopeCase{"tanh_many", bf16, tanh, true, true, 9000, 776, 64},
                          SlopeCase{"erf_odd", bf16, erf, true, false, 301, 392, 70},
                          SlopeCase{"relu_f16", f16, relu, true, false, 40, 64, 33},
                          SlopeCase{"tanh_f16", f16, tanh, true, true, 130, 72, 64},
                          SlopeCase{"erf_f16", f16, erf, true, true, 257, 136, 96},
                          SlopeCase{"slopes", bf16, tanh, true, false, 301, 520, 203, true},
                          SlopeCase{"slopes_alone", bf16, erf, false, false, 129, 264, 70, true},
                          SlopeCase{"slopes_many", bf16, tanh, true, true, 9000, 776, 520, true},
                          SlopeCase{"slopes_f16", f16, tanh, true, true, 257, 136, 96, true}),
        ::testing::Bool()),
    [](const auto& i) { return name_of(i); });

}  // namespace
}  // namespace saturate::kernels
