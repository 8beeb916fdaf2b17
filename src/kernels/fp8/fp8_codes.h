// SPDX-License-Identifier: Apache-2.0
// Codes of 8-bit floating point and the rule of scales, the same on the CPU and on the GPU.
#pragma once
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/philox.h"  // SAT_HD
#include "kernels/fp8/fp8.h"

namespace saturate::kernels {

struct Fp8Layout {
  int mantissa, bias;
  float largest;
  uint8_t largest_code;
};
SAT_HD constexpr Fp8Layout fp8_layout(Fp8Format f) {
  return f == Fp8Format::e4m3 ? Fp8Layout{3, 7, 448.0f, 0x7E} : Fp8Layout{2, 15, 57344.0f, 0x7B};
}

// The scale for values up to amax, with a factor of two to spare: 1 where amax says nothing.
SAT_HD float fp8_scale_for(float amax, Fp8Format f) {
  if (!(amax > 0.0f) || amax - amax != 0.0f) return 1.0f;
  int exponent = 0;
  const float mantissa = frexpf(fp8_layout(f).largest / (2.0f * amax), &exponent);
  // The quotient may leave the range of floats at both ends.
  if (mantissa - mantissa != 0.0f || exponent > 120) return 0x1p+119f;
  return ldexpf(1.0f, exponent - 1 > -120 ? exponent - 1 : -120);
}

// The scale that fp8_quantize() takes. Of a site without a step behind it amax is complete before this is asked,
// unless `scale_known` was wrong.
SAT_HD float fp8_scale_of(const Fp8Site& site, bool scale_known, Fp8Format f) {
  if (site.scale > 0.0f) return site.scale;
  return scale_known ? 1.0f : fp8_scale_for(site.amax, f);
}

inline uint8_t fp8_encode(float x, Fp8Format f) {
  const Fp8Layout l = fp8_layout(f);
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(x) >> 31 << 7);
  const float a = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint8_t>(sign | 0x7F);
  if (a >= l.largest) return static_cast<uint8_t>(sign | l.largest_code);
  uint32_t code = 0;
  if (a < std::ldexp(1.0f, 1 - l.bias)) {  // subnormal: a multiple of the smallest code
    code = static_cast<uint32_t>(std::lrint(std::ldexp(a, l.bias - 1 + l.mantissa)));
  } else {
    const int drop = 23 - l.mantissa;
    uint32_t bits = std::bit_cast<uint32_t>(a);
    bits += (1u << (drop - 1)) - 1 + ((bits >> drop) & 1);
    code = (bits >> drop) - (static_cast<uint32_t>(127 - l.bias) << l.mantissa);
  }
  return static_cast<uint8_t>(sign | code);
}

// Values of all codes.
inline std::array<float, 256> fp8_values(Fp8Format f) {
  const Fp8Layout l = fp8_layout(f);
  std::array<float, 256> values{};
  for (int code = 0; code < 256; ++code) {
    const int e = (code & 0x7F) >> l.mantissa, m = code & ((1 << l.mantissa) - 1);
    float v = e == 0
                  ? std::ldexp(static_cast<float>(m), 1 - l.bias - l.mantissa)
                  : std::ldexp(static_cast<float>((1 << l.mantissa) + m), e - l.bias - l.mantissa);
    if ((code & 0x7F) > l.largest_code)
      v = f == Fp8Format::e5m2 && m == 0 ? std::numeric_limits<float>::infinity()
                                         : std::numeric_limits<float>::quiet_NaN();
    values[static_cast<size_t>(code)] = code >= 128 ? -v : v;
  }
  return values;
}

// The site after a step.
SAT_HD void fp8_end_step(Fp8Site& s, float amax, bool good, Fp8Format f) {
  s.amax = 0.0f;
  if (s.scale == 0.0f) s.scale = 1.0f;  // from now on nobody looks for one
  if (!good || amax - amax != 0.0f) return;
  float most = amax;
  for (int i = kFp8History - 1; i > 0; --i) {
    s.history[i] = s.history[i - 1];
    most = s.history[i] > most ? s.history[i] : most;
  }
  s.history[0] = amax;
  if (most > 0.0f) s.scale = fp8_scale_for(most, f);
}

}  // namespace saturate::kernels
