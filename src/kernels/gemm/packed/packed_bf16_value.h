// SPDX-License-Identifier: Apache-2.0
// Numbers as products in bf16 take them.
#pragma once
#include <bit>
#include <cstdint>

#include "base/half.h"

namespace saturate::kernels::packed {

// The nearest bf16, ties to even; zero with its sign for what is below the least normal number, as the
// processors' own conversion has it.
inline uint16_t bf16_bits(float v) {
  const auto bits = std::bit_cast<uint32_t>(v);
  if ((bits & 0x7f800000u) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000u);
  return to_bf16(v).bits;
}

}  // namespace saturate::kernels::packed
