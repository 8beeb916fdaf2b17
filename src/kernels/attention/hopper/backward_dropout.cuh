// SPDX-License-Identifier: Apache-2.0
// Dropout in the Hopper backward kernel. With P the probabilities, K those of them that are kept
// and r = 1 / (1 - p):
//
//   d_v = r K' d_o,  d_s = r (K o d_p - (1 - p) delta P)
//
// r is left to the results, 1 - p is in delta. P and K share registers: until the gradients of the
// scores are made the sign says whether a probability is dropped, afterwards dropped ones are 0.
#pragma once
#include "kernels/attention/hopper/backward_device.cuh"
#include "kernels/attention/mma/dropout.cuh"

namespace saturate::kernels::attention::hopper {

// first: as DropoutBits::draw_columns wants it.
template <class P>
__device__ __forceinline__ void mark_dropped(uint32_t (&left)[P::kM / 16][4],
                                             const DropoutBits& dropout, uint64_t first) {
#pragma unroll
  for (int c = 0; c < P::kM / 16; ++c) {
    uint32_t words[4];
    dropout.draw_columns(words, first + (static_cast<uint64_t>(16 * c) << 14));
#pragma unroll
    for (int i = 0; i < 4; ++i) left[c][i] |= ~dropout.kept_halves(words[i]) & 0x80008000u;
  }
}

// Both halves, 0 where they are negative; NaN stays.
template <class T>
__device__ __forceinline__ uint32_t without_negative(uint32_t x) {
  uint32_t y;
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(0));
  else
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(0));
  return y;
}

// Gradients of two scores over r, of d_p and (1 - p) delta. `probabilities` is marked, and left
// with the kept ones alone.
template <class T>
__device__ __forceinline__ uint32_t dropped_gradients(uint32_t& probabilities, const float* d_p,
                                                      float2 delta) {
  const float2 all = unpack<T>(probabilities);
  probabilities = without_negative<T>(probabilities);
  const float2 kept = unpack<T>(probabilities);
  return wgmma::pack<T>(kept.x * d_p[0] - fabsf(all.x) * delta.x,
                        kept.y * d_p[1] - fabsf(all.y) * delta.y);
}

}  // namespace saturate::kernels::attention::hopper
