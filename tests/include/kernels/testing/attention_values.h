// SPDX-License-Identifier: Apache-2.0
// For the tests: values of the number formats on the host, as doubles.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/dtype.h"

namespace saturate::kernels {

using Values = std::vector<double>;

// Nearest value of a format with `bits` of significand (no overflow handling: inputs are small).
inline double rounded(double x, int bits, int lowest_exponent) {
  int e = 0;
  (void)std::frexp(x, &e);
  const double unit = std::ldexp(1.0, std::max(e - bits, lowest_exponent));
  return std::nearbyint(x / unit) * unit;
}
inline double rounded(double x, DType t) {
  if (x == 0 || !std::isfinite(x)) return x;
  if (t == DType::f32) return static_cast<float>(x);
  if (t == DType::bf16) return rounded(x, 8, -133);
  if (t == DType::f16) return rounded(x, 11, -24);
  return x;
}

inline void encode(double x, DType t, void* to) {
  const auto single = static_cast<float>(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, 4);
  if (t == DType::f64) return void(std::memcpy(to, &x, 8));
  if (t == DType::f32) return void(std::memcpy(to, &bits, 4));
  auto half = static_cast<uint16_t>(bits >> 16);
  if (t == DType::f16) {  // x is a value of f16
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (std::isnan(x)) {
      half = 0x7E00;
    } else if (std::fabs(x) < 0x1p-14) {
      half = static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                                   static_cast<uint32_t>(std::fabs(x) * 0x1p24));
    } else {
      half = static_cast<uint16_t>((bits >> 16 & 0x8000u) | ((magnitude - (112u << 23)) >> 13));
    }
  }
  std::memcpy(to, &half, 2);
}

inline double decode(const void* from, DType t) {
  if (t == DType::f64) {
    double x = 0;
    std::memcpy(&x, from, 8);
    return x;
  }
  uint32_t bits = 0;
  if (t == DType::f32) {
    std::memcpy(&bits, from, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, from, 2);
    const uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (t == DType::f16) {
      const double sign = half & 0x8000u ? -1 : 1;
      if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
      return exponent ? sign * std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25)
                      : sign * std::ldexp(static_cast<double>(fraction), -24);
    }
    bits = static_cast<uint32_t>(half) << 16;
  }
  float x = 0;
  std::memcpy(&x, &bits, 4);
  return static_cast<double>(x);
}

}  // namespace saturate::kernels
