// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_scaled/block_scaled.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "base/error.h"
#include "kernels/block_scaled/block_scaled_codes.h"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/testing/guarded.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::TestContext;
using Values = std::vector<double>;
using enum BlockFormat;

constexpr BlockFormat kFormats[] = {mxfp8_e4m3, mxfp8_e5m2, mxfp4, nvfp4};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

uint64_t hash(uint64_t h, uint32_t v) { return (h ^ v) * 0x100000001b3ull; }
constexpr uint64_t kStart = 0xcbf29ce484222325ull;

// ml_dtypes 0.6, float4_e2m1fn: FNV-1a of the values of all codes, and of the codes of 65,536 numbers of many
// sizes (cut to 6) and of the halves between neighbouring codes with the floats beside them. float8_e8m0fnu:
// of the values of all codes (NaN as 7777).
TEST(BlockCodes, AreThoseOfMlDtypes) {
  uint64_t values = kStart, codes = kStart, scales = kStart;
  for (const float v : e2m1_values()) values = hash(values, std::bit_cast<uint32_t>(v));
  EXPECT_EQ(values, 0x737516397f6465ull);
  uint32_t s = 1;
  for (int i = 0; i < 65536; ++i) {
    s = s * 1664525u + 1013904223u;
    const uint32_t bits =
        (s & 0x80000000u) | (127 - 24 + (s >> 24) % 44) << 23 | (s * 2654435761u) >> 9;
    codes = hash(codes, e2m1_encode(std::clamp(std::bit_cast<float>(bits), -6.0f, 6.0f)));
  }
  auto sorted = e2m1_values();
  std::ranges::sort(sorted);
  for (size_t i = 0; i + 1 < sorted.size(); ++i) {
    const float half = sorted[i] / 2 + sorted[i + 1] / 2;
    if (half == 0) continue;
    for (const float v : {half, std::nextafter(half, 100.0f), std::nextafter(half, -100.0f)})
      codes = hash(codes, e2m1_encode(v));
  }
  EXPECT_EQ(codes, 0x9677db3121025a6ull);
  for (int c = 0; c < 256; ++c) {
    const float v = e8m0_value(static_cast<uint8_t>(c));
    scales = hash(scales, std::bit_cast<uint32_t>(std::isnan(v) ? 7777.0f : v));
  }
  EXPECT_EQ(scales, 0x4401e07d6d304f25ull);
}

TEST(BlockCodes, FourBitsSaturateAndKeepSigns) {
  EXPECT_EQ(e2m1_encode(kInfinity), 7);
  EXPECT_EQ(e2m1_encode(-1e30f), 15);
  EXPECT_EQ(e2m1_encode(-0.0f), 8);
  EXPECT_EQ(e2m1_encode(-0.25f), 8);
}

double largest_of(BlockFormat f) {
  if (f == mxfp8_e4m3) return 448;
  return f == mxfp8_e5m2 ? 57344 : 6;
}

// The smallest power of two that is enough, by trying them.
int exponent_for(double amax, BlockFormat f) {
  int e = -127;
  while (amax > std::ldexp(largest_of(f), e)) ++e;
  return e;
}

TEST(BlockScales, AreTheSmallestPowerOfTwoByWhichNothingSaturates) {
  for (const BlockFormat f : {mxfp8_e4m3, mxfp8_e5m2, mxfp4}) {
    for (int e = -149; e <= 127; ++e)
      for (const float fraction : {1.0f, 1.25f, 1.5f, 1.75f, 1.9999999f})
        for (const float to : {0.0f, 1.0f, kInfinity}) {
          const float power = std::ldexp(fraction, e);
          const float amax = to == 1.0f ? power : std::nextafter(power, to);
          if (!std::isfinite(amax)) continue;
          const int code = e8m0_for(amax, f);
          ASSERT_EQ(code - 127, exponent_for(static_cast<double>(amax), f)) << amax;
          const float reciprocal = e8m0_reciprocal(static_cast<uint8_t>(code));
          ASSERT_EQ(reciprocal, std::ldexp(1.0f, 127 - code));
        }
    EXPECT_EQ(e8m0_for(0, f), 0);
    EXPECT_EQ(e8m0_for(kInfinity, f), kE8m0NaN);
    EXPECT_EQ(e8m0_for(NAN, f), kE8m0NaN);
  }
}

// Rows and blocks worked out by hand from the picture in cuBLAS's documentation.
TEST(BlockScales, LieInTilesOf128RowsAndFourBlocks) {
  const int64_t tiles = block_scale_tiles(mxfp8_e4m3, 6 * 32);
  EXPECT_EQ(tiles, 2);
  EXPECT_EQ(block_scale_tiles(nvfp4, 6 * 16 + 16), 2);
  EXPECT_EQ(block_scale_place(0, 0, tiles), 0);
  EXPECT_EQ(block_scale_place(0, 3, tiles), 3);
  EXPECT_EQ(block_scale_place(32, 0, tiles), 4);
  EXPECT_EQ(block_scale_place(96, 3, tiles), 15);
  EXPECT_EQ(block_scale_place(1, 0, tiles), 16);
  EXPECT_EQ(block_scale_place(127, 3, tiles), 511);
  EXPECT_EQ(block_scale_place(0, 4, tiles), 512);
  EXPECT_EQ(block_scale_place(128, 0, tiles), 1024);
  std::set<int64_t> places;
  for (int64_t r = 0; r < 256; ++r)
    for (int64_t b = 0; b < 8; ++b) places.insert(block_scale_place(r, b, tiles));
  EXPECT_EQ(static_cast<int64_t>(places.size()), block_scale_bytes(mxfp8_e4m3, 200, 6 * 32));
  EXPECT_EQ(*places.rbegin() + 1, block_scale_bytes(mxfp8_e4m3, 200, 6 * 32));
}

// Values of codes 0, 1, ... of a sign, ascending.
Values magnitudes(BlockFormat f) {
  Values all;
  const auto add = [&](const auto& table, size_t count) {
    for (size_t c = 0; c < count; ++c) all.push_back(static_cast<double>(table[c]));
  };
  if (f == mxfp8_e4m3) add(fp8_values(Fp8Format::e4m3), 0x7F);
  if (f == mxfp8_e5m2) add(fp8_values(Fp8Format::e5m2), 0x7C);
  if (f == mxfp4 || f == nvfp4) add(e2m1_values(), 8);
  return all;
}

// The nearest, of two the one with an even code; beyond the last, the last.
int nearest(const Values& sorted, double x) {
  const auto above = std::ranges::lower_bound(sorted, x);
  if (above == sorted.end()) return static_cast<int>(sorted.size()) - 1;
  const int high = static_cast<int>(above - sorted.begin());
  if (high == 0) return 0;
  const double up = *above - x, down = x - *(above - 1);
  if (up != down) return up < down ? high : high - 1;
  return high % 2 == 0 ? high : high - 1;
}

struct Quantized {
  std::vector<uint8_t> codes, scales;
  float tensor = 1;
};

// In doubles, an element after the other: what the header says. nvfp4's scales are defined by operations in f32.
Quantized reference(const Values& x, int64_t rows, int64_t cols, BlockFormat f) {
  Quantized q{std::vector<uint8_t>(static_cast<size_t>(block_code_bytes(f, rows, cols))),
              std::vector<uint8_t>(static_cast<size_t>(block_scale_bytes(f, rows, cols)))};
  const Values table = magnitudes(f), of_scales = magnitudes(mxfp8_e4m3);
  const auto largest = [](auto begin, auto end) {
    double most = 0;
    for (auto i = begin; i != end; ++i)
      most = std::isfinite(*i) ? std::max(most, std::fabs(*i)) : NAN;
    return most;
  };
  float encode = 1;
  if (f == nvfp4) {
    double most = 0;
    for (const double v : x)
      most = std::isfinite(v) && most == most ? std::max(most, std::fabs(v)) : NAN;
    if (most > 0) encode = std::min(2688.0f / static_cast<float>(most), 0x1p+100f);
    if (std::isnan(most)) encode = NAN;
    q.tensor = 1.0f / encode;
  }
  const int64_t size = block_size(f), tiles = block_scale_tiles(f, cols);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b * size < cols; ++b) {
      const auto begin = x.begin() + r * cols + b * size;
      const auto count = std::min(size, cols - b * size);
      double most = largest(begin, begin + count);
      if (std::any_of(begin, begin + count, [](double v) { return !std::isfinite(v); })) most = NAN;
      int scale = 0;
      double factor = 0;
      if (f != nvfp4) {
        const int e = std::isnan(most) ? 128 : exponent_for(most, f);
        scale = e + 127;
        factor = std::isnan(most) ? 0 : std::ldexp(1.0, -e);
      } else if (std::isnan(encode)) {
        scale = 0x7F;
      } else {
        const float wanted = static_cast<float>(most) / 6.0f * encode;
        scale = nearest(of_scales, static_cast<double>(wanted));
        const float of_code = static_cast<float>(of_scales[static_cast<size_t>(scale)]);
        if (scale != 0) factor = static_cast<double>(encode / of_code);
      }
      q.scales[static_cast<size_t>(block_scale_place(r, b, tiles))] = static_cast<uint8_t>(scale);
      for (int64_t i = 0; i < count; ++i) {
        const double v = factor == 0 && !std::isfinite(begin[i]) ? 0 : begin[i];
        // In f32: a product with a power of two is exact, or far below the smallest code.
        const float scaled = factor == 0 && std::isnan(most + static_cast<double>(encode))
                                 ? 0.0f
                                 : static_cast<float>(v) * static_cast<float>(factor);
        const int magnitude = nearest(table, std::fabs(static_cast<double>(scaled)));
        const int sign = std::signbit(scaled) ? 1 : 0;
        const auto at = static_cast<size_t>(r * cols + b * size + i);
        if (block_code_bits(f) == 8)
          q.codes[at] = static_cast<uint8_t>(sign << 7 | magnitude);
        else
          q.codes[at / 2] |= static_cast<uint8_t>((sign << 3 | magnitude) << at % 2 * 4);
      }
    }
  return q;
}

template <class T>
std::vector<T> from_device(const TestContext& t, const void* p, size_t count) {
  std::vector<T> out(count);
  copy_to_host(t.stream, out.data(), p, count * sizeof(T));
  t.stream.synchronize();
  return out;
}

// An operand in a device's memory, guarded.
struct Operand {
  Operand(const TestContext& t, BlockFormat f, int64_t rows, int64_t cols)
      : format(f),
        codes(t.stream, DType::i32, block_code_bytes(f, rows, cols) / 4),
        scales(t.stream, DType::i32, block_scale_bytes(f, rows, cols) / 4),
        tensor(t.stream.device(), sizeof(BlockTensor)) {}
  BlockOperand get() const {
    return {codes.as<uint8_t>(), scales.as<uint8_t>(), tensor.as<BlockTensor>(), format};
  }
  Quantized read(const TestContext& t) const {
    const std::vector<char> c = codes.bytes(), s = scales.bytes();
    return {{c.begin(), c.end()},
            {s.begin(), s.end()},
            format == nvfp4 ? from_device<BlockTensor>(t, tensor.data(), 1)[0].scale : 1.0f};
  }
  BlockFormat format;
  Guarded codes, scales;
  Buffer tensor;
};

void expect_equal(const Quantized& got, const Quantized& wanted) {
  if (std::isnan(wanted.tensor)) {
    EXPECT_TRUE(std::isnan(got.tensor));  // of any bits: GPUs make other ones
  } else {
    EXPECT_EQ(std::bit_cast<uint32_t>(got.tensor), std::bit_cast<uint32_t>(wanted.tensor));
  }
  EXPECT_TRUE(got.scales == wanted.scales);
  EXPECT_TRUE(got.codes == wanted.codes);
  for (size_t i = 0; i < wanted.scales.size(); ++i)
    ASSERT_EQ(got.scales[i], wanted.scales[i]) << "scale " << i;
  for (size_t i = 0; i < wanted.codes.size(); ++i)
    ASSERT_EQ(got.codes[i], wanted.codes[i]) << "code " << i;
}

// Both orientations, of one call.
void check_quantize(Device device, DType type, BlockFormat f, const Values& x, int64_t rows,
                    int64_t cols) {
  SCOPED_TRACE(static_cast<int>(f));
  const TestContext t(device);
  const Guarded given(t.stream, type, x);
  const Operand by_rows(t, f, rows, cols), by_cols(t, f, cols, rows);
  BlockQuantizeArgs args{.x = given.data(),
                         .codes = by_rows.codes.as<uint8_t>(),
                         .scales = by_rows.scales.as<uint8_t>(),
                         .transposed = by_cols.codes.as<uint8_t>(),
                         .transposed_scales = by_cols.scales.as<uint8_t>(),
                         .tensor = by_rows.tensor.as<BlockTensor>(),
                         .rows = rows,
                         .cols = cols,
                         .dtype = type,
                         .format = f};
  block_quantize(t.get(), args);
  Values across(x.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c)
      across[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
  const Quantized wanted = reference(x, rows, cols, f);
  expect_equal(by_rows.read(t), wanted);
  Quantized transposed = by_cols.read(t);
  transposed.tensor = wanted.tensor;  // one for both
  expect_equal(transposed, reference(across, cols, rows, f));
  // One alone, into what is poisoned.
  const Operand alone(t, f, rows, cols);
  args.codes = alone.codes.as<uint8_t>(), args.scales = alone.scales.as<uint8_t>();
  args.transposed = nullptr, args.tensor = alone.tensor.as<BlockTensor>();
  block_quantize(t.get(), args);
  expect_equal(alone.read(t), wanted);
}

// Sizes of many orders, halves between codes, blocks of zeros; 6.5 blocks of 32 a row, 1.4 tiles of rows.
Values awkward(int64_t rows, int64_t cols, DType type) {
  Values x = testing::random_values(rows * cols, type, 3);
  const int range = type == DType::f16 ? 6 : 40;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      double& v = x[static_cast<size_t>(r * cols + c)];
      if (r % 3 != 0) v = std::ldexp(v, static_cast<int>(r * 7 + c / 16 * 5) % (2 * range) - range);
      if (r % 5 == 4) v = static_cast<double>((r * 31 + c * 17) % 97 - 48) / 4;
      if (r == 7 || c / 32 == 3) v = 0;
    }
  x[0] = -0.0;
  return x;
}

void check_many(Device device, DType type) {
  for (const BlockFormat f : kFormats) {
    Values x = awkward(176, 208, type);
    if (type == DType::f16)  // what the type holds
      for (double& v : x) v = testing::value_of(testing::bits_of(v, type), type);
    if (type == DType::bf16)
      for (double& v : x) v = testing::value_of(testing::bits_of(v, type), type);
    check_quantize(device, type, f, x, 176, 208);
    check_quantize(device, type, f, Values(x.begin(), x.begin() + 16 * 16), 16, 16);
    check_quantize(device, type, f, Values(16 * 48, 0), 16, 48);
  }
}

void check_extremes(Device device) {
  for (const BlockFormat f : kFormats)
    for (const double special :
         {static_cast<double>(kInfinity), static_cast<double>(-kInfinity), static_cast<double>(NAN),
          3.4e38, 1e-30, 1e-44, 0x1p-126, 0x1p-133}) {
      Values x(32 * 64, 0.0);
      if (std::isfinite(special)) std::ranges::fill(x, special / 3);
      for (double& v : x) v = static_cast<double>(static_cast<float>(v));
      x[33] = x[40 * 32 + 5] = static_cast<double>(static_cast<float>(special));
      x[64 * 31 + 63] = 1e-3 * (std::isfinite(special) ? 0 : 1);
      for (double& v : x) v = static_cast<double>(static_cast<float>(v));
      check_quantize(device, DType::f32, f, x, 32, 64);
    }
}

// A tensor's and a block's largest values between whose scale and the next another order of the three operations
// decides otherwise.
void check_order(Device device) {
  for (const auto& [tensor, block] :
       {std::pair{0x1.8306bep+0, 0x1.d5f5e8p-4}, std::pair{0x1.f2dabp+0, 0x1.e109bap-11},
        std::pair{0x1.4d9e2ep+0, 0x1.29df84p-3}}) {
    Values x(16 * 16, 0.0);
    x[0] = tensor, x[17] = block;
    check_quantize(device, DType::f32, nvfp4, x, 16, 16);
  }
}

TEST(BlockQuantize, RoundsScalesInTheOrderOfItsContractOnCpu) { check_order({}); }
TEST(BlockQuantize, RoundsScalesInTheOrderOfItsContractOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  check_order({DeviceKind::cuda, 0});
}
TEST(BlockQuantize, IsWhatItsContractSaysOnCpu) { check_many({}, DType::f32); }
TEST(BlockQuantize, TakesInfinitiesAndBothEndsOfFloatsOnCpu) { check_extremes({}); }
TEST(BlockQuantize, IsWhatItsContractSaysOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    check_many({DeviceKind::cuda, 0}, type);
}
TEST(BlockQuantize, TakesInfinitiesAndBothEndsOfFloatsOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  check_extremes({DeviceKind::cuda, 0});
}

// What codes and scales say, in doubles.
Values decoded(const Quantized& q, int64_t rows, int64_t cols, BlockFormat f) {
  Values x(static_cast<size_t>(rows * cols));
  const Values table = magnitudes(f), of_scales = magnitudes(mxfp8_e4m3);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < cols; ++c) {
      const auto at = static_cast<size_t>(r * cols + c);
      const auto place =
          static_cast<size_t>(block_scale_place(r, c / block_size(f), block_scale_tiles(f, cols)));
      const int bits = block_code_bits(f),
                code = bits == 8 ? q.codes[at] : q.codes[at / 2] >> at % 2 * 4 & 15;
      const double scale = f == nvfp4 ? of_scales[q.scales[place]] * static_cast<double>(q.tensor)
                                      : std::ldexp(1.0, q.scales[place] - 127);
      const double value = table[static_cast<size_t>(code & ((1 << (bits - 1)) - 1))];
      x[at] = (code >> (bits - 1) ? -1 : 1) * value * scale;
    }
  return x;
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
  const Buffer scratch(device, block_matmul_scratch_bytes(device, m, n, k));
  for (const BlockFormat f : kFormats)
    for (const bool adds : {false, true}) {
      if (device.is_cuda() && f == mxfp4) continue;
      const BlockFormat of_b = f == mxfp8_e5m2 ? mxfp8_e4m3 : f;
      const auto operand = [&](const Guarded& x, BlockFormat format, int64_t rows) {
        Operand o(t, format, rows, k);
        block_quantize(t.get(), {.x = x.data(),
                                 .codes = o.codes.as<uint8_t>(),
                                 .scales = o.scales.as<uint8_t>(),
                                 .tensor = o.tensor.as<BlockTensor>(),
                                 .rows = rows,
                                 .cols = k,
                                 .dtype = type,
                                 .format = format});
        return o;
      };
      const Operand qa = operand(a_in, f, m), qb = operand(b_in, of_b, n);
      block_matmul(t.get(), {.a = qa.get(),
                             .b = qb.get(),
                             .c = adds ? c_in.data() : nullptr,
                             .d = d.data(),
                             .bias = adds ? nullptr : bias_in.data(),
                             .scratch = scratch.data(),
                             .m = m,
                             .n = n,
                             .k = k,
                             .dtype = type});
      const Values da = decoded(qa.read(t), m, k, f), db = decoded(qb.read(t), n, k, of_b),
                   got = d.values();
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j) {
          double sum = 0, size = 0;
          for (int64_t e = 0; e < k; ++e) {
            const double term =
                da[static_cast<size_t>(i * k + e)] * db[static_cast<size_t>(j * k + e)];
            sum += term;
            size += std::fabs(term);
          }
          const auto at = static_cast<size_t>(i * n + j);
          sum += adds ? c[at] : bias[static_cast<size_t>(j)];
          // f32 sums of 160 terms, and the factor of nvfp4; tensor cores may keep fewer bits. Then one
          // rounding to the type.
          const double sums = device.is_cuda() ? 0x1p-13 : 0x1p-19;
          ASSERT_NEAR(got[at], sum, sums * size + epsilon_of(type) * std::fabs(sum))
              << i << " " << j << " format " << static_cast<int>(f);
        }
    }
}
TEST(BlockMatmul, MultipliesWhatWasRoundedOnCpu) { check_product({}, DType::f32); }
TEST(BlockMatmul, MultipliesWhatWasRoundedOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  if (const char* reason = block_refusal({DeviceKind::cuda, 0})) GTEST_SKIP() << reason;
  check_product({DeviceKind::cuda, 0}, DType::bf16);
}

TEST(BlockMatmul, RefusesWhatDoesNotGoTogether) {
  const TestContext t({});
  float x[48] = {};
  uint8_t y[2048] = {};
  BlockTensor tensor;
  EXPECT_THROW(block_quantize(t.get(), {.x = x, .codes = y, .scales = y, .rows = 1, .cols = 24}),
               Error);
  EXPECT_THROW(
      block_quantize(t.get(),
                     {.x = x, .transposed = y, .transposed_scales = y, .rows = 2, .cols = 16}),
      Error);
  EXPECT_THROW(block_quantize(t.get(), {.x = x, .codes = y, .rows = 1, .cols = 16}), Error);
  EXPECT_THROW(
      block_quantize(t.get(),
                     {.x = x, .codes = y, .scales = y, .rows = 1, .cols = 16, .format = nvfp4}),
      Error);
  const auto product = [&](BlockFormat a, BlockFormat b, int64_t k) {
    block_matmul(t.get(), {.a = {y, y, &tensor, a},
                           .b = {y, y, &tensor, b},
                           .d = x,
                           .scratch = x,
                           .m = 1,
                           .n = 16,
                           .k = k});
  };
  EXPECT_THROW(product(mxfp8_e4m3, nvfp4, 16), Error);
  EXPECT_THROW(product(mxfp4, nvfp4, 16), Error);
  EXPECT_THROW(product(nvfp4, nvfp4, 24), Error);
  EXPECT_EQ(block_refusal({}), nullptr);
}

}  // namespace
}  // namespace saturate::kernels
