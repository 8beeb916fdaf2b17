// SPDX-License-Identifier: Apache-2.0
// From products to probabilities and gradients in the Hopper backward kernel where a soft cap or
// ALiBi slopes are set (one of the two). Elements of a thread lie as in backward_consume.cuh:
// element i of a tile belongs to query i / 4 * 8 + i % 2 and key i / 2 % 2 * 8 from its first on.
#pragma once
#include "kernels/attention/hopper/backward_device.cuh"

namespace saturate::kernels::attention::hopper {

// lse of the query of element i.
template <int kCount>
__device__ __forceinline__ float value_of(const float2 (&lse)[kCount], int i) {
  return i % 2 == 0 ? lse[i / 4].x : lse[i / 4].y;
}
// What is added to the distance of element 0 for that of element i.
__device__ __forceinline__ constexpr float farther(int i) {
  return static_cast<float>(i / 4 * 8 + i % 2 - i / 2 % 2 * 8);
}

template <class P>
__device__ __forceinline__ void capped_probabilities(const BackwardProblem& p,
                                                     float (&s)[P::kM / 2],
                                                     const float2 (&lse)[P::kM / 8]) {
#pragma unroll
  for (int i = 0; i < P::kM / 2; ++i) s[i] = exp2_fast(p.windowed.capped(s[i]) - value_of(lse, i));
}
// distance: of element 0.
template <class P>
__device__ __forceinline__ void sloped_probabilities(const BackwardProblem& p,
                                                     float (&s)[P::kM / 2],
                                                     const float2 (&lse)[P::kM / 8], float slope,
                                                     float distance) {
#pragma unroll
  for (int i = 0; i < P::kM / 2; ++i) {
    const float less = slope * fabsf(distance + farther(i));
    s[i] = exp2_fast(s[i] * p.score_scale - less - value_of(lse, i));
  }
}

// The derivative of the cap at the score that a probability came of. That is log2 of the
// probability and lse, good to the probability's rounding over the cap; factor: 1 over the cap.
// Where the probability is 0 any number will do, but NaN would not.
__device__ __forceinline__ float cap_slope(float probability, float lse, float factor) {
  const float t = fminf(fmaxf((__log2f(probability) + lse) * factor, -1.0f), 1.0f);
  return 1.0f - t * t;
}
// delta, lse: where those of this thread's queries lie in shared memory.
template <class P>
__device__ __forceinline__ void capped_gradients(const BackwardProblem& p,
                                                 uint32_t (&packed)[P::kM / 16][4],
                                                 const float (&d_p)[P::kM / 2],
                                                 const uint32_t (&left)[P::kM / 16][4],
                                                 uint32_t delta, uint32_t lse) {
  const float factor = __fdividef(1.0f, p.windowed.cap_out);
#pragma unroll
  for (int j = 0; j < P::kM / 8; ++j) {
    const float2 x = load_pair(delta + j * 32), y = load_pair(lse + j * 32);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 prob = unpack<typename P::T>(left[j / 2][j % 2 * 2 + h]);
      const float* d = &d_p[4 * j + 2 * h];
      packed[j / 2][j % 2 * 2 + h] =
          wgmma::pack<typename P::T>(prob.x * (d[0] - x.x) * cap_slope(prob.x, y.x, factor),
                                     prob.y * (d[1] - x.y) * cap_slope(prob.y, y.y, factor));
    }
  }
}
// With slopes whose gradient is wanted: gradients times distances are added to `sum`.
template <class P>
__device__ __forceinline__ void sloped_gradients(uint32_t (&packed)[P::kM / 16][4],
                                                 const float (&d_p)[P::kM / 2],
                                                 const uint32_t (&left)[P::kM / 16][4],
                                                 uint32_t delta, float distance, float& sum) {
#pragma unroll
  for (int j = 0; j < P::kM / 8; ++j) {
    const float2 x = load_pair(delta + j * 32);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = 4 * j + 2 * h;
      const float2 prob = unpack<typename P::T>(left[j / 2][j % 2 * 2 + h]);
      const float a = prob.x * (d_p[i] - x.x), b = prob.y * (d_p[i + 1] - x.y);
      packed[j / 2][j % 2 * 2 + h] = wgmma::pack<typename P::T>(a, b);
      sum += a * fabsf(distance + farther(i)) + b * fabsf(distance + farther(i + 1));
    }
  }
}

}  // namespace saturate::kernels::attention::hopper
