// SPDX-License-Identifier: Apache-2.0
#include "kernels/fp8/fp8.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;
using Values = std::vector<double>;

uint64_t hash(uint64_t h, uint32_t v) { return (h ^ v) * 0x100000001b3ull; }
constexpr uint64_t kStart = 0xcbf29ce484222325ull;

// The same numbers as the hashes below were made from: many sizes, then halves between neighbouring codes.
std::vector<float> numbers(Fp8Format f) {
  std::vector<float> x;
  const float largest = fp8_layout(f).largest;
  uint32_t s = 1;
  for (int i = 0; i < 65536; ++i) {
    s = s * 1664525u + 1013904223u;
    const uint32_t bits =
        (s & 0x80000000u) | (127 - 24 + (s >> 24) % 44) << 23 | (s * 2654435761u) >> 9;
    x.push_back(std::clamp(std::bit_cast<float>(bits), -largest, largest));
  }
  std::vector<float> finite;
  for (const float v : fp8_values(f))
    if (std::isfinite(v)) finite.push_back(v);
  std::ranges::sort(finite);
  for (size_t i = 0; i + 1 < finite.size(); ++i)
    if (const float half = finite[i] / 2 + finite[i + 1] / 2; half != 0) x.push_back(half);
  return x;
}

// ml_dtypes 0.5, float8_e4m3fn and float8_e5m2: FNV-1a of the values of all 256 codes (NaN as 7777,
// infinities as 9e9), and of the codes of numbers().
TEST(Fp8Codes, AreThoseOfMlDtypes) {
  struct Case {
    Fp8Format format;
    uint64_t values, codes;
  };
  for (const Case& c : {Case{Fp8Format::e4m3, 0xbf4d47d9585a8725ull, 0x899575ea921449c6ull},
                        Case{Fp8Format::e5m2, 0xb05da7c673774b25ull, 0x1acc6503d83d499cull}}) {
    uint64_t values = kStart, codes = kStart;
    for (float v : fp8_values(c.format)) {
      if (std::isnan(v)) v = 7777.0f;
      if (std::isinf(v)) v = std::copysign(9e9f, v);
      values = hash(values, std::bit_cast<uint32_t>(v));
    }
    for (const float v : numbers(c.format)) codes = hash(codes, fp8_encode(v, c.format));
    EXPECT_EQ(values, c.values);
    EXPECT_EQ(codes, c.codes);
  }
}

TEST(Fp8Codes, SaturateAndKeepNaN) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(fp8_encode(1e9f, Fp8Format::e4m3), 0x7E);
  EXPECT_EQ(fp8_encode(-inf, Fp8Format::e4m3), 0xFE);
  EXPECT_EQ(fp8_encode(inf, Fp8Format::e5m2), 0x7B);
  EXPECT_EQ(fp8_encode(NAN, Fp8Format::e5m2) & 0x7F, 0x7F);
  EXPECT_EQ(fp8_encode(-0.0f, Fp8Format::e4m3), 0x80);
}

TEST(Fp8Codes, ScalesLeaveAFactorOfTwo) {
  EXPECT_EQ(fp8_scale_for(1.0f, Fp8Format::e4m3), 128.0f);  // 224
  EXPECT_EQ(fp8_scale_for(224.0f, Fp8Format::e4m3), 1.0f);
  EXPECT_EQ(fp8_scale_for(1e-6f, Fp8Format::e5m2), 0x1p+34f);  // 2.9e10
  for (const float nothing : {0.0f, INFINITY, NAN})
    EXPECT_EQ(fp8_scale_for(nothing, Fp8Format::e4m3), 1.0f);
  for (const float edge : {1e-44f, 3e38f}) {
    const float scale = fp8_scale_for(edge, Fp8Format::e4m3);
    EXPECT_GT(scale, 0.0f);
    EXPECT_TRUE(std::isfinite(scale) && std::isfinite(1.0f / scale) && 1.0f / scale > 0);
  }
}

template <class T>
std::vector<T> from_device(const TestContext& t, const void* p, size_t count) {
  std::vector<T> out(count);
  copy_to_host(t.stream, out.data(), p, count * sizeof(T));
  t.stream.synchronize();
  return out;
}

// Codes of x (rows, cols), and its transposed ones, by a site; and what the site is then.
struct Quantized {
  Buffer site, codes, transposed;
  Fp8Site now;
};
Quantized quantize(const TestContext& t, const Guarded& x, DType type, int64_t rows, int64_t cols,
                   Fp8Format format, const Fp8Site& before) {
  const auto bytes = static_cast<size_t>(rows * cols);
  Quantized q{Buffer(t.stream.device(), sizeof before),
              Buffer(t.stream.device(), bytes),
              Buffer(t.stream.device(), bytes),
              {}};
  copy_to_device(t.stream, q.site.data(), &before, sizeof before);
  fp8_quantize(t.get(), {.x = x.data(),
                         .y = q.codes.as<uint8_t>(),
                         .transposed = q.transposed.as<uint8_t>(),
                         .site = q.site.as<Fp8Site>(),
                         .rows = rows,
                         .cols = cols,
                         .dtype = type,
                         .format = format});
  q.now = from_device<Fp8Site>(t, q.site.data(), 1)[0];
  return q;
}

void check_quantize(Device device, DType type) {
  const TestContext t(device);
  constexpr int64_t kRows = 80, kCols = 144;
  Values x = testing::random_values(kRows * kCols, type, 3);
  x[77] = -6;
  const Guarded given(t.stream, type, x);
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2})
    for (const float scale : {0.0f, 256.0f}) {
      Fp8Site before;
      before.scale = scale;
      before.amax = scale > 0 ? 9 : 0;  // a micro-batch before had that
      const Quantized q = quantize(t, given, type, kRows, kCols, format, before);
      const float used = scale > 0 ? scale : fp8_scale_for(6, format);
      EXPECT_EQ(q.now.amax, scale > 0 ? 9.0f : 6.0f);
      EXPECT_EQ(q.now.inverse * used, 1.0f);
      EXPECT_EQ(q.now.scale, scale);
      const auto codes = from_device<uint8_t>(t, q.codes.data(), x.size()),
                 transposed = from_device<uint8_t>(t, q.transposed.data(), x.size());
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t c = 0; c < kCols; ++c) {
          const auto i = static_cast<size_t>(r * kCols + c);
          ASSERT_EQ(codes[i], fp8_encode(static_cast<float>(x[i]) * used, format)) << x[i];
          ASSERT_EQ(transposed[static_cast<size_t>(c * kRows + r)], codes[i]);
        }
    }
}

// What is rounded is f(x), or x times f's slope: its codes, itself in x's type and its columns' sums.
void check_prepared(Device device, DType type) {
  const TestContext t(device);
  constexpr int64_t kRows = 272, kCols = 144;
  constexpr size_t kCount = kRows * kCols;
  const Values x = testing::random_values(kCount, type, 3),
               given = testing::random_values(kCount, type, 4);
  const Guarded x_in(t.stream, type, x), given_in(t.stream, type, given);
  Fp8Site before;
  before.scale = 32;
  for (const Fp8Prepare prepare : {Fp8Prepare::activation, Fp8Prepare::slope})
    for (const ActivationKind kind : {ActivationKind::relu, ActivationKind::gelu_tanh}) {
      Values want(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        const auto at = [&](double v) {
          const double k = std::sqrt(2 / M_PI), u = std::tanh(k * (v + 0.044715 * v * v * v));
          if (kind == ActivationKind::relu) return std::pair(std::max(v, 0.0), v > 0 ? 1.0 : 0.0);
          return std::pair(v / 2 * (1 + u),
                           (1 + u) / 2 + v / 2 * (1 - u * u) * k * (1 + 3 * 0.044715 * v * v));
        };
        want[i] = prepare == Fp8Prepare::activation ? at(x[i]).first : x[i] * at(given[i]).second;
      }
      Buffer site(device, sizeof before), codes(device, kCount), turned(device, kCount),
          partial(device, std::max<size_t>(16, fp8_partial_bytes(device, kRows, kCols)));
      copy_to_device(t.stream, site.data(), &before, sizeof before);
      const Guarded copy(t.stream, type, kCount), sums(t.stream, DType::f32, Values(kCols, 0.5));
      fp8_quantize(t.get(), {.x = x_in.data(),
                             .y = codes.as<uint8_t>(),
                             .transposed = turned.as<uint8_t>(),
                             .site = site.as<Fp8Site>(),
                             .rows = kRows,
                             .cols = kCols,
                             .dtype = type,
                             .format = Fp8Format::e4m3,
                             .prepare = prepare,
                             .activation = kind,
                             .given = given_in.data(),
                             .copy = copy.data(),
                             .column_sum = sums.as<float>(),
                             .partial = partial.as<float>(),
                             .add_to_column_sum = true});
      const Values got = copy.values(), summed = sums.values();
      const auto c = from_device<uint8_t>(t, codes.data(), kCount),
                 ct = from_device<uint8_t>(t, turned.data(), kCount);
      const std::array<float, 256> values = fp8_values(Fp8Format::e4m3);
      // Half a unit of e4m3, or of its smallest numbers; and of x's type where the copy is rounded.
      const double of_type = type == DType::f32 ? 1e-5 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(got[i], want[i], of_type * std::fabs(want[i]) + 1e-5) << i;
        ASSERT_NEAR(values[c[i]] / 32, want[i], 0x1p-4 * std::fabs(want[i]) + 0x1p-10 / 32 + 1e-5);
        ASSERT_EQ(ct[i % kCols * kRows + i / kCols], c[i]) << i;
      }
      for (size_t col = 0; col < kCols; ++col) {
        double sum = 0.5, size = 0.5;
        for (size_t r = 0; r < kRows; ++r)
          sum += want[r * kCols + col], size += std::fabs(want[r * kCols + col]);
        ASSERT_NEAR(summed[col], sum, 1e-5 * size) << col;
      }
    }
}

TEST(Fp8, RoundsWhatItPreparesOnCpu) { check_prepared({}, DType::f32); }
TEST(Fp8, RoundsWhatItPreparesOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    check_prepared({DeviceKind::cuda, 0}, type);
}

// Of a site that no step has ended with, although it was said to have one.
void check_known_scale(Device device, DType type) {
  const TestContext t(device);
  const Values x = testing::random_values(16 * 16, type, 3);
  const Guarded given(t.stream, type, x);
  const Fp8Site before;
  const Buffer site(device, sizeof before), codes(device, x.size());
  copy_to_device(t.stream, site.data(), &before, sizeof before);
  fp8_quantize(t.get(), {.x = given.data(),
                         .y = codes.as<uint8_t>(),
                         .site = site.as<Fp8Site>(),
                         .rows = 16,
                         .cols = 16,
                         .dtype = type,
                         .scale_known = true});
  const auto got = from_device<uint8_t>(t, codes.data(), x.size());
  double most = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(got[i], fp8_encode(static_cast<float>(x[i]), Fp8Format::e4m3)) << x[i];
    most = std::max(most, std::fabs(x[i]));
  }
  EXPECT_EQ(from_device<Fp8Site>(t, site.data(), 1)[0].amax, static_cast<float>(most));
}
TEST(Fp8, TakesOneForAScaleThatIsNotThereOnCpu) { check_known_scale({}, DType::f32); }
TEST(Fp8, TakesOneForAScaleThatIsNotThereOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  check_known_scale({DeviceKind::cuda, 0}, DType::bf16);
}

// Many matrices at once are rounded as one by one.
void check_weights(Device device, DType type) {
  const TestContext t(device);
  constexpr int64_t kCols = 144;
  Fp8Site before;
  before.scale = 32;
  std::vector<Guarded> x;
  std::vector<Quantized> want, got;
  std::vector<Fp8WeightArgs> all;
  for (int i = 0; i < 330; ++i) {  // more than one launch takes
    const int64_t rows = i % 3 == 0 ? 272 : 16 * (1 + i % 3);
    const auto bytes = static_cast<size_t>(rows * kCols);
    x.emplace_back(t.stream, type,
                   testing::random_values(rows * kCols, type, 7 + static_cast<uint64_t>(i)));
    want.push_back(quantize(t, x.back(), type, rows, kCols, Fp8Format::e4m3, before));
    got.push_back(
        {Buffer(device, sizeof before), Buffer(device, bytes), Buffer(device, bytes), {}});
    copy_to_device(t.stream, got.back().site.data(), &before, sizeof before);
    all.push_back({.x = x.back().data(),
                   .y = got.back().codes.as<uint8_t>(),
                   .transposed = got.back().transposed.as<uint8_t>(),
                   .site = got.back().site.as<Fp8Site>(),
                   .rows = rows,
                   .cols = kCols});
  }
  fp8_quantize_weights(t.get(), {all, type});
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t bytes = got[i].codes.bytes();
    EXPECT_EQ(from_device<uint8_t>(t, got[i].codes.data(), bytes),
              from_device<uint8_t>(t, want[i].codes.data(), bytes));
    EXPECT_EQ(from_device<uint8_t>(t, got[i].transposed.data(), bytes),
              from_device<uint8_t>(t, want[i].transposed.data(), bytes));
    const Fp8Site now = from_device<Fp8Site>(t, got[i].site.data(), 1)[0];
    EXPECT_EQ(now.amax, want[i].now.amax);
    EXPECT_EQ(now.inverse, want[i].now.inverse);
  }
}
TEST(Fp8, RoundsManyMatricesAtOnceOnCpu) { check_weights({}, DType::f32); }
TEST(Fp8, RoundsManyMatricesAtOnceOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16}) check_weights({DeviceKind::cuda, 0}, type);
}

TEST(Fp8, QuantizesByTheSiteOnCpu) { check_quantize({}, DType::f32); }
TEST(Fp8, QuantizesByTheSiteOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    check_quantize({DeviceKind::cuda, 0}, type);
}

// Against doubles on the operands as they were rounded, so the bound is of sums alone.
void check_product(Device device, DType type) {
  const TestContext t(device);
  constexpr int64_t m = 70, n = 48, k = 160;
  const Values a = testing::random_values(m * k, type, 1),
               b = testing::random_values(n * k, type, 2),
               c = testing::random_values(m * n, type, 3),
               bias = testing::random_values(n, type, 4);
  const Guarded a_in(t.stream, type, a), b_in(t.stream, type, b), c_in(t.stream, type, c),
      bias_in(t.stream, type, bias), d(t.stream, type, m * n);
  const Buffer scratch(device, fp8_matmul_scratch_bytes(device, m, n, k));
  const bool has_bias = !device.is_cuda() || type != DType::f32;
  for (const Fp8Format format : {Fp8Format::e4m3, Fp8Format::e5m2})
    for (const bool adds : {false, true}) {
      // Rows need not be a multiple of 16 where no transposed copy is asked for.
      const Buffer site(device, sizeof(Fp8Site)), codes(device, static_cast<size_t>(m * k));
      const Fp8Site empty;
      copy_to_device(t.stream, site.data(), &empty, sizeof empty);
      fp8_quantize(t.get(), {.x = a_in.data(),
                             .y = codes.as<uint8_t>(),
                             .site = site.as<Fp8Site>(),
                             .rows = m,
                             .cols = k,
                             .dtype = type,
                             .format = format});
      const Quantized w = quantize(t, b_in, type, n, k, Fp8Format::e4m3, {});
      fp8_matmul(t.get(), {.a = codes.as<uint8_t>(),
                           .b = w.codes.as<uint8_t>(),
                           .a_site = site.as<Fp8Site>(),
                           .b_site = w.site.as<Fp8Site>(),
                           .c = adds ? c_in.data() : nullptr,
                           .d = d.data(),
                           .bias = adds || !has_bias ? nullptr : bias_in.data(),
                           .scratch = scratch.data(),
                           .m = m,
                           .n = n,
                           .k = k,
                           .dtype = type,
                           .a_format = format});
      const auto a8 = from_device<uint8_t>(t, codes.data(), a.size()),
                 b8 = from_device<uint8_t>(t, w.codes.data(), b.size());
      const double factor =
          static_cast<double>(from_device<Fp8Site>(t, site.data(), 1)[0].inverse * w.now.inverse);
      const auto of_a = fp8_values(format), of_b = fp8_values(Fp8Format::e4m3);
      const Values got = d.values();
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, size = 0;
          for (int64_t e = 0; e < k; ++e) {
            const double term = factor *
                                static_cast<double>(of_a[a8[static_cast<size_t>(i * k + e)]]) *
                                static_cast<double>(of_b[b8[static_cast<size_t>(j * k + e)]]);
            sum += term;
            size += std::fabs(term);
          }
          const auto at = static_cast<size_t>(i * n + j);
          if (adds || has_bias) sum += adds ? c[at] : bias[static_cast<size_t>(j)];
          // Tensor cores keep 14 bits of a sum; then one rounding to the type.
          const double sums = device.is_cuda() ? 0x1p-13 : 0x1p-20;
          ASSERT_NEAR(got[at], sum, sums * size + epsilon_of(type) * std::fabs(sum))
              << i << " " << j;
        }
    }
}
TEST(Fp8, MultipliesWhatWasRoundedOnCpu) { check_product({}, DType::f32); }
TEST(Fp8, MultipliesWhatWasRoundedOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  if (const char* reason = fp8_refusal({DeviceKind::cuda, 0})) GTEST_SKIP() << reason;
  for (const DType type : {DType::bf16, DType::f32}) check_product({DeviceKind::cuda, 0}, type);
}

void check_roll(Device device) {
  const TestContext t(device);
  StepState state;
  state.totals[2] = 1;
  // Of a layer: grown, smaller than before, none; and another rank's, whose first is larger.
  std::vector<Fp8Site> sites(6);
  sites[0].amax = 3;
  sites[1].amax = 1, sites[1].scale = 16, sites[1].history[0] = 8;
  sites[2].scale = 4;
  sites[3].amax = 5;
  const Buffer own(device, 3 * sizeof(Fp8Site)), all(device, 6 * sizeof(Fp8Site)),
      held(device, sizeof state);
  const auto roll = [&](const StepState& now) {
    copy_to_device(t.stream, own.data(), sites.data(), own.bytes());
    copy_to_device(t.stream, all.data(), sites.data(), all.bytes());
    copy_to_device(t.stream, held.data(), &now, sizeof now);
    fp8_roll(t.get(), {.sites = own.as<Fp8Site>(),
                       .gathered = all.as<Fp8Site>(),
                       .count = 3,
                       .ranks = 2,
                       .state = held.as<StepState>()});
    return from_device<Fp8Site>(t, own.data(), 3);
  };
  std::vector<Fp8Site> now = roll(state);
  EXPECT_EQ(now[0].scale, fp8_scale_for(5, Fp8Format::e4m3));
  EXPECT_EQ(now[0].history[0], 5.0f);
  EXPECT_EQ(now[1].scale, fp8_scale_for(8, Fp8Format::e4m3));
  EXPECT_EQ(now[1].history[1], 8.0f);
  EXPECT_EQ(now[2].scale, 4.0f);
  for (const Fp8Site& s : now) EXPECT_EQ(s.amax, 0.0f);
  sites[2].amax = 2;  // the gradient's format
  EXPECT_EQ(roll(state)[2].scale, fp8_scale_for(2, Fp8Format::e5m2));
  sites[0].amax = INFINITY;
  EXPECT_EQ(roll(state)[0].scale, 1.0f);  // forgotten, and nobody looks for a scale any more
  state.grad_square_sum = static_cast<double>(NAN);
  now = roll(state);
  EXPECT_EQ(now[1].scale, 16.0f);
  EXPECT_EQ(now[1].history[0], 8.0f);
  EXPECT_EQ(now[1].amax, 0.0f);
}
TEST(Fp8, StepsEndOnCpu) { check_roll({}); }
TEST(Fp8, StepsEndOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  check_roll({DeviceKind::cuda, 0});
}

TEST(Fp8, RefusesSizesThatAreNoMultipleOfSixteen) {
  const TestContext t({});
  float x[24] = {};
  Fp8Site site;
  uint8_t y[24];
  EXPECT_THROW(fp8_quantize(t.get(), {.x = x, .y = y, .site = &site, .rows = 1, .cols = 24}),
               Error);
  EXPECT_THROW(
      fp8_matmul(
          t.get(),
          {.a = y, .b = y, .a_site = &site, .b_site = &site, .d = x, .m = 1, .n = 16, .k = 8}),
      Error);
  EXPECT_EQ(fp8_refusal({}), nullptr);
}

}  // namespace
}  // namespace saturate::kernels
