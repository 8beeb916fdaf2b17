// SPDX-License-Identifier: Apache-2.0
// bf16 and f16 on the host, as their bits. Rounding is to nearest even, as the GPU does it.
#pragma once
#include <bit>
#include <cstdint>

namespace saturate {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float to_float(Bf16 v) { return std::bit_cast<float>(static_cast<uint32_t>(v.bits) << 16); }

inline Bf16 to_bf16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7FFFFFFFu) > 0x7F800000u;
  return {static_cast<uint16_t>(nan ? 0x7FFFu : rounded)};
}

inline float to_float(F16 v) {
  const uint32_t sign = static_cast<uint32_t>(v.bits & 0x8000u) << 16;
  const uint32_t magnitude = v.bits & 0x7FFFu;
  // The exponent field moves by 112 = 127 - 15; multiplying also normalises subnormals.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t finite = std::bit_cast<uint32_t>(scaled);
  const uint32_t special = 0x7F800000u | (magnitude << 13);
  return std::bit_cast<float>(sign | (magnitude >= 0x7C00u ? special : finite));
}

inline F16 to_f16(float v) {
  const auto u = std::bit_cast<uint32_t>(v);
  const uint32_t sign = (u >> 16) & 0x8000u, magnitude = u & 0x7FFFFFFFu;
  // Subnormal results: adding 1/2 leaves the value in units of 2^-24 in the low bits, rounded.
  const uint32_t tiny =
      std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t bits = magnitude < 0x38800000u ? tiny : normal;
  if (magnitude >= 0x477FF000u) bits = 0x7C00u;  // 65520 and more round to infinity
  if (magnitude > 0x7F800000u) bits = 0x7FFFu;
  return {static_cast<uint16_t>(sign | bits)};
}

// A double as the float below or above it that is odd, so that rounding once more to 16 bits gives
// what rounding the double directly would (Boldo and Melquiond, "When double rounding is odd",
// 2005).
inline float round_to_odd(float v) { return v; }
inline float round_to_odd(double v) {
  const float nearest = static_cast<float>(v);
  const double back = nearest;
  if (back == v || v != v || (std::bit_cast<uint32_t>(nearest) & 1u) != 0) return nearest;
  const bool away =
      v > 0 ? back < v : back > v;  // |v| > |nearest|: the odd neighbour lies outwards
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) + (away ? 1u : ~0u));
}

}  // namespace saturate
