// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/block_scaled/block_scaled_codes.h"
#include "kernels/block_scaled/block_scaled_impl.h"
#include "kernels/fp8/fp8_codes.h"
#include "kernels/gemm/matmul.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrain = 1 << 13;

Fp8Format element_of(BlockFormat f) {
  return f == BlockFormat::mxfp8_e5m2 ? Fp8Format::e5m2 : Fp8Format::e4m3;
}

const std::array<float, 256>& values_of(Fp8Format f) {
  static const std::array<float, 256> e4m3 = fp8_values(Fp8Format::e4m3),
                                      e5m2 = fp8_values(Fp8Format::e5m2);
  return f == Fp8Format::e4m3 ? e4m3 : e5m2;
}

// What is no number stays: it has to show.
float larger(float a, float b) { return a > b || a - a != 0.0f ? a : b; }

float amax_of(const float* x, int64_t count) {
  std::atomic<float> most = 0.0f;
  parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    float own = 0.0f;
    for (int64_t i = begin; i < end; ++i) own = larger(std::fabs(x[i]), own);
    float before = most.load();
    while (!most.compare_exchange_weak(before, larger(own, before))) {
    }
  });
  return most;
}

// A matrix that is read by rows or, transposed, by columns, and where its codes go.
struct Side {
  const float* x;
  int64_t rows, cols, row_stride, col_stride;
  uint8_t* codes;
  uint8_t* scales;
};

// Scale and factor of a block.
struct Chosen {
  uint8_t scale;
  float factor;  // codes are of x * factor
};
Chosen choose(float amax, BlockFormat f, float encode) {
  if (f != BlockFormat::nvfp4) {
    const uint8_t scale = e8m0_for(amax, f);
    return {scale, scale == kE8m0NaN ? 0.0f : e8m0_reciprocal(scale)};
  }
  const uint8_t scale = fp8_encode(amax / 6.0f * encode, Fp8Format::e4m3) & 0x7F;
  if (scale == 0 || scale == kE4m3NaN) return {scale, 0.0f};
  return {scale, encode / values_of(Fp8Format::e4m3)[scale]};
}

void quantize_row(const Side& s, int64_t r, BlockFormat f, float encode) {
  const int64_t size = block_size(f), tiles = block_scale_tiles(f, s.cols);
  const bool is_nv = f == BlockFormat::nvfp4;
  for (int64_t begin = 0; begin < s.cols; begin += size) {
    const int64_t end = std::min(begin + size, s.cols);
    const auto at = [&](int64_t c) { return s.x[r * s.row_stride + c * s.col_stride]; };
    float amax = 0.0f;
    for (int64_t c = begin; c < end; ++c) amax = larger(std::fabs(at(c)), amax);
    const Chosen chosen = choose(amax, f, encode);
    s.scales[block_scale_place(r, begin / size, tiles)] = chosen.scale;
    const bool bad = chosen.scale == (is_nv ? kE4m3NaN : kE8m0NaN);
    for (int64_t c = begin; c < end; ++c) {
      const float v = bad ? 0.0f : at(c) * chosen.factor;
      if (block_code_bits(f) == 8) {
        s.codes[r * s.cols + c] = fp8_encode(v, element_of(f));
      } else {
        uint8_t& pair = s.codes[(r * s.cols + c) / 2];
        pair = static_cast<uint8_t>(c % 2 == 0 ? e2m1_encode(v) : pair | e2m1_encode(v) << 4);
      }
    }
  }
}

void quantize(const Side& s, BlockFormat f, float encode) {
  std::memset(s.scales, 0, static_cast<size_t>(block_scale_bytes(f, s.rows, s.cols)));
  parallel_for(s.rows, std::max<int64_t>(1, kGrain / s.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) quantize_row(s, r, f, encode);
  });
}

// Values times scales of their blocks: exact but for the ends of the range of floats.
void decode(const BlockOperand& x, int64_t rows, int64_t cols, float* out) {
  const BlockFormat f = x.format;
  const int64_t size = block_size(f), tiles = block_scale_tiles(f, cols);
  const std::array<float, 256>& values = values_of(element_of(f));
  const std::array<float, 16> small = e2m1_values();
  parallel_for(rows, std::max<int64_t>(1, kGrain / cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t c = 0; c < cols; ++c) {
        const uint8_t code = x.scales[block_scale_place(r, c / size, tiles)];
        const float scale =
            f == BlockFormat::nvfp4 ? values_of(Fp8Format::e4m3)[code] : e8m0_value(code);
        const int64_t i = r * cols + c;
        out[i] = scale * (block_code_bits(f) == 8
                              ? values[x.codes[i]]
                              : small[static_cast<size_t>(x.codes[i / 2] >> i % 2 * 4 & 0xF)]);
      }
  });
}

}  // namespace

void block_quantize_cpu(const Context&, const BlockQuantizeArgs& x) {
  const auto* const in = static_cast<const float*>(x.x);
  float encode = 1.0f;
  if (x.format == BlockFormat::nvfp4) {
    encode = nvfp4_encode_scale(amax_of(in, x.rows * x.cols));
    x.tensor->scale = 1.0f / encode;
  }
  if (x.codes != nullptr)
    quantize({in, x.rows, x.cols, x.cols, 1, x.codes, x.scales}, x.format, encode);
  if (x.transposed != nullptr)
    quantize({in, x.cols, x.rows, 1, x.cols, x.transposed, x.transposed_scales}, x.format, encode);
}

void block_matmul_cpu(const Context& ctx, const BlockMatmulArgs& x) {
  auto* const a = static_cast<float*>(x.scratch);
  float* const b = a + x.m * x.k;
  decode(x.a, x.m, x.k, a);
  decode(x.b, x.n, x.k, b);
  const bool is_nv = x.a.format == BlockFormat::nvfp4;
  matmul(ctx, {.a = a,
               .b = b,
               .c = x.c,
               .d = x.d,
               .bias = x.bias,
               .m = x.m,
               .n = x.n,
               .k = x.k,
               .lda = x.k,
               .ldb = x.k,
               .ldc = x.n,
               .ldd = x.n,
               .tb = Transpose::yes,
               .alpha = is_nv ? x.a.tensor->scale * x.b.tensor->scale : 1.0f,
               .beta = x.c != nullptr ? 1.0f : 0.0f});
}

}  // namespace saturate::kernels
