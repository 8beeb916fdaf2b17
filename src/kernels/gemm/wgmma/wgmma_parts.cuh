// SPDX-License-Identifier: Apache-2.0
// Products of operands in two fp16 parts, high and low: x s = h + l / 2^11 to 22 bits, s a power of two of x's row of A
// or column of B.
#pragma once
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

constexpr float kLowScale = 2048.0f;

// The biased exponent of the power of two that brings a row whose largest magnitude has these bits
// to [2^14, 2^15), where fp16 ends at 2^16. Without it where the row has an infinity or NaN.
__device__ inline uint32_t scale_exponent(uint32_t peak) {
  const uint32_t exponent = peak >> 23;
  return exponent == 255 ? 127u : min(268u - exponent, 253u);
}
__device__ inline float scale_of(uint32_t peak) {
  return __uint_as_float(scale_exponent(peak) << 23);
}
__device__ inline float inverse_scale_of(uint32_t peak) {
  return __uint_as_float((254u - scale_exponent(peak)) << 23);
}

// Takes the scales of rows and columns back: the smaller factor first, so that nothing overflows
// that is not too large in the end.
template <class P, class Unit>
__device__ inline void unscale(const Problem& p, float (&sum)[P::kN / 2], const Unit& x, int row) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const int r0 = x.m + row + thread / 32 * 16 + lane / 4, c0 = x.n + lane % 4 * 2;
  float of_row[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = r0 + half * 8;
    of_row[half] = inverse_scale_of(r < p.m ? p.peaks_a[r] : 0);
  }
#pragma unroll
  for (int j = 0; j < P::kN / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int c = c0 + j * 8 + i;
      const float of_column = inverse_scale_of(c < p.n ? p.peaks_b[c] : 0);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& v = sum[j * 4 + half * 2 + i];
        v = v * fminf(of_row[half], of_column) * fmaxf(of_row[half], of_column);
      }
    }
  }
}

}  // namespace saturate::kernels::wgmma
