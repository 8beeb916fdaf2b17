// SPDX-License-Identifier: Apache-2.0
// Codes of 4 bits, scales of blocks and how they are chosen, the same on the CPU and on the GPU.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/philox.h"  // SAT_HD
#include "kernels/block_scaled/block_scaled.h"

namespace saturate::kernels {

SAT_HD uint32_t bits_of_float(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  return std::bit_cast<uint32_t>(x);
#endif
}
SAT_HD float float_of_bits(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

// Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6, of two the one with an even code; what is larger is 6.
SAT_HD uint8_t e2m1_encode(float x) {
  const float a = x < 0 ? -x : x;
  const int code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                   (a >= 3.5f) + (a > 5.0f);
  return static_cast<uint8_t>(static_cast<uint32_t>(code) | bits_of_float(x) >> 31 << 3);
}
inline std::array<float, 16> e2m1_values() {
  return {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
          -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
}

constexpr uint8_t kE8m0NaN = 0xFF, kE4m3NaN = 0x7F;

// The exponent of the smallest power of two X with amax <= largest X, biased by 127. Without a division,
// which would round: the largest code is fraction * 2^exponent, and fractions are compared as bits.
SAT_HD uint8_t e8m0_for(float amax, BlockFormat f) {
  const uint32_t bits = bits_of_float(amax), exponent = bits >> 23, fraction = bits & 0x7FFFFFu;
  if (exponent == 0xFF) return kE8m0NaN;
  const uint32_t of_largest =
      f == BlockFormat::mxfp8_e4m3 ? 8 : (f == BlockFormat::mxfp8_e5m2 ? 15 : 2);
  const uint32_t most = f == BlockFormat::mxfp4 ? 0x400000u : 0x600000u;  // 1.5 and 1.75
  const uint32_t up = exponent + (fraction > most ? 1u : 0u);
  return static_cast<uint8_t>(up > of_largest ? up - of_largest : 0u);
}
// 2^(127 - code), by which a block is multiplied; code below 254, as e8m0_for() gives.
SAT_HD float e8m0_reciprocal(uint8_t code) { return float_of_bits((254u - code) << 23); }
inline float e8m0_value(uint8_t code) {
  if (code == kE8m0NaN) return std::numeric_limits<float>::quiet_NaN();
  return code == 0 ? 0x1p-127f : float_of_bits(static_cast<uint32_t>(code) << 23);
}

// By what a tensor is multiplied before scales of its blocks are rounded: NaN where amax is not finite. The
// bound keeps quotients by the smallest scale finite.
SAT_HD float nvfp4_encode_scale(float amax) {
  if (amax - amax != 0.0f) return float_of_bits(0x7FC00000u);
  if (!(amax > 0.0f)) return 1.0f;
  const float scale = 2688.0f / amax;  // 448 * 6
  return scale < 0x1p+100f ? scale : 0x1p+100f;
}

}  // namespace saturate::kernels
