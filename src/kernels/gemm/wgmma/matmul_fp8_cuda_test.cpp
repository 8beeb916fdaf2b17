// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_fp8.h"

#include <cmath>

#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;

struct Case {
  const char* name;
  Fp8 a, b;
  DType d;
  int64_t m, n, k;
  bool scaled = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Value of a byte; e4m3 has no infinity, and these tests use no byte that is one or no number.
double value_of(int byte, Fp8 type) {
  const int fraction_bits = type == Fp8::e4m3 ? 3 : 2, bias = type == Fp8::e4m3 ? 7 : 15;
  const int exponent = (byte & 0x7F) >> fraction_bits, fraction = byte & ((1 << fraction_bits) - 1);
  const int implicit = exponent == 0 ? 0 : 1 << fraction_bits;
  return (byte & 0x80 ? -1 : 1) *
         std::ldexp(fraction + implicit, std::max(exponent, 1) - bias - fraction_bits);
}

// Bytes of both signs with magnitudes from subnormal up to 4.
std::vector<uint8_t> random_bytes(int64_t count, Fp8 type, unsigned seed) {
  const int top = type == Fp8::e4m3 ? 0x48 : 0x44;  // 4
  std::mt19937 rng(seed);
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& b : bytes) {
    const auto r = static_cast<unsigned>(rng());
    b = static_cast<uint8_t>(r % static_cast<unsigned>(top) | (r >> 16 & 0x80));
  }
  return bytes;
}

struct Bytes {
  Bytes(const Stream& stream, const std::vector<uint8_t>& values)
      : buffer(stream.device(), values.size()) {
    copy_to_device(stream, buffer.data(), values.data(), values.size());
    stream.synchronize();
  }
  Buffer buffer;
};

class MatmulFp8 : public ::testing::TestWithParam<Case> {};

// Against sums in double precision. Products of fp8 are exact in fp32. The tensor cores keep at
// least 13 bits below the point of the largest of 32 terms and the sum so far (DeepSeek-V3 report,
// 3.3.2) and cut off the rest: 33 terms times 2^-13 of the largest, which is at most the sum of
// magnitudes of the 128 values of a stage; stages add with rounding.
TEST_P(MatmulFp8, MatchesDoubles) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const Case& c = GetParam();
  const TestContext t({DeviceKind::cuda, 0});
  const int64_t lda = (c.k + 15) / 16 * 16 + 16, ldd = (c.n + 7) / 8 * 8 + 8;
  const auto va = random_bytes(c.m * lda, c.a, 1), vb = random_bytes(c.n * lda, c.b, 2);
  const Bytes a(t.stream, va), b(t.stream, vb);
  const double scale_a = c.scaled ? 0.375 : 1.0, scale_b = c.scaled ? 3.0 : 1.0;
  const Guarded device_scale_a(t.stream, DType::f32, std::vector<double>{scale_a}),
      device_scale_b(t.stream, DType::f32, std::vector<double>{scale_b});
  Guarded d(t.stream, c.d, c.m * ldd);
  // amax begins at 0, or above every result where those are f16.
  const double amax_before = c.d == DType::f16 ? 1e6 : 0.0;
  const Guarded amax(t.stream, DType::f32, std::vector<double>{amax_before});
  const MatmulFp8Args args{.a = a.buffer.data(),
                           .b = b.buffer.data(),
                           .d = d.data(),
                           .scale_a = c.scaled ? device_scale_a.as<float>() : nullptr,
                           .scale_b = c.scaled ? device_scale_b.as<float>() : nullptr,
                           .amax = amax.as<float>(),
                           .m = c.m,
                           .n = c.n,
                           .k = c.k,
                           .lda = lda,
                           .ldb = lda,
                           .ldd = ldd,
                           .a_type = c.a,
                           .b_type = c.b,
                           .d_type = c.d};
  const Fit fit = matmul_fp8_cuda_fits(t.get(), args);
  ASSERT_TRUE(fit || device_info({DeviceKind::cuda, 0}).compute_major != 9) << fit.reason;
  if (!fit) GTEST_SKIP() << fit.reason;
  matmul_fp8_cuda(t.get(), args);
  const auto got = d.values();
  const auto first = d.bytes();
  double worst = 0, top = 0, top_bound = 0;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0, bound = 0;
      for (int64_t k = 0; k < c.k; ++k) {
        const double p = value_of(va[static_cast<size_t>(i * lda + k)], c.a) *
                         value_of(vb[static_cast<size_t>(j * lda + k)], c.b);
        sum += p;
        bound += std::fabs(p);
      }
      const double scale = scale_a * scale_b, is = got[static_cast<size_t>(i * ldd + j)];
      bound *= scale * (33 * 0x1p-13 + (static_cast<double>(c.k) / 128 + 4) * 0x1p-24);
      if (std::fabs(sum * scale) > top) top = std::fabs(sum * scale);
      top_bound = std::max(top_bound, bound);
      bound += epsilon_of(c.d) * std::fabs(sum * scale);
      worst = std::max(worst, std::fabs(is - sum * scale) / bound);
      ASSERT_LE(std::fabs(is - sum * scale), bound)
          << "at (" << i << ", " << j << "): " << is << " for " << sum * scale;
    }
    for (int64_t j = c.n; j < ldd; ++j)
      ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i * ldd + j)])) << "wrote beyond column " << j;
  }
  if (amax_before > top) {
    EXPECT_EQ(amax.values()[0], amax_before);
  } else {
    EXPECT_NEAR(amax.values()[0], top, top_bound);
  }
  RecordProperty("share_of_bound", std::to_string(worst));
  matmul_fp8_cuda(t.get(), args);
  EXPECT_EQ(first, d.bytes()) << "two runs differ";
}

constexpr Fp8 e4m3 = Fp8::e4m3, e5m2 = Fp8::e5m2;
constexpr DType bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32;
INSTANTIATE_TEST_SUITE_P(Cases, MatmulFp8,
                         ::testing::Values(Case{"plain", e4m3, e4m3, bf16, 256, 256, 256},
                                           Case{"one", e4m3, e4m3, f32, 1, 1, 1},
                                           Case{"odd", e4m3, e4m3, f32, 301, 521, 203, true},
                                           Case{"many", e4m3, e4m3, bf16, 2304, 1104, 40},
                                           Case{"half", e4m3, e4m3, f16, 129, 264, 1111, true},
                                           Case{"gradient", e5m2, e4m3, bf16, 333, 200, 301, true},
                                           Case{"gradient_f32", e5m2, e4m3, f32, 130, 77, 640},
                                           Case{"gradient_f16", e5m2, e4m3, f16, 130, 72, 640},
                                           Case{"swapped", e4m3, e5m2, bf16, 72, 136, 520},
                                           Case{"swapped_f16", e4m3, e5m2, f16, 72, 136, 520},
                                           Case{"swapped_f32", e4m3, e5m2, f32, 72, 135, 520},
                                           Case{"wide", e5m2, e5m2, bf16, 136, 264, 410},
                                           Case{"wide_f16", e5m2, e5m2, f16, 136, 264, 410},
                                           Case{"wide_f32", e5m2, e5m2, f32, 136, 265, 410, true}),
                         [](const auto& i) { return std::string(i.param.name); });

TEST(MatmulFp8Arguments, BadOnesAreNamed) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  const TestContext t({DeviceKind::cuda, 0});
  float x = 0;
  MatmulFp8Args args{
      .a = &x, .b = &x, .d = &x, .m = 8, .n = 8, .k = 32, .lda = 16, .ldb = 32, .ldd = 8};
  try {
    matmul_fp8_cuda(t.get(), args);
    FAIL() << "a leading dimension below k went through";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("a is (8, 32) with leading dimension 16"),
              std::string::npos);
  }
  args.lda = 40;
  EXPECT_FALSE(matmul_fp8_cuda_fits(t.get(), args));
}

}  // namespace
}  // namespace saturate::kernels
