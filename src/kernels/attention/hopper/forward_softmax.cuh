// SPDX-License-Identifier: Apache-2.0
// Between the two products of the Hopper forward kernel: from scores in registers to weights.
#pragma once
#include <math_constants.h>

#include "kernels/attention/hopper/forward_problem.h"
#include "kernels/attention/mma/device.cuh"
#include "kernels/attention/mma/dropout.cuh"
#include "kernels/hopper/registers.cuh"

namespace saturate::kernels::attention {

// Scores of keys that this thread's two rows may not see become -infinity. `column`: key of s[0],
// `bound`: keys from it on do not exist; row: the upper of the two queries.
template <class P>
__device__ __forceinline__ void mask(float (&s)[P::kKeys / 2], int column, int bound, bool causal,
                                     int row) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int end = (causal ? min(bound, row + half * 8 + 1) : bound) - column;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (j * 8 + c >= end) s[j * 4 + half * 2 + c] = -CUDART_INF_F;
    }
  }
}

// One step of the online softmax: s becomes weights, `shrink` what earlier sums shrink by.
template <class P>
__device__ __forceinline__ void softmax(float (&s)[P::kKeys / 2], float (&top)[2],
                                        float (&weight)[2], float (&shrink)[2], float scale) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float high = -CUDART_INF_F, high2 = -CUDART_INF_F;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
      high = fmaxf(high, s[j * 4 + half * 2]);
      high2 = fmaxf(high2, s[j * 4 + half * 2 + 1]);
    }
    high = fmaxf(high, high2);
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 2)) * scale;
    // -infinity until a key is seen: then exponents are taken from 0, and all are 0.
    const float before = top[half];
    if (high > before + P::kLazy || before == -CUDART_INF_F) top[half] = fmaxf(high, before);
    const float base = top[half] == -CUDART_INF_F ? 0.0f : top[half];
    shrink[half] = exp2_fast(before - base);
    float sum = 0.0f, sum2 = 0.0f;
#pragma unroll
    for (int j = 0; j < P::kKeys / 8; ++j) {
      float* x = &s[j * 4 + half * 2];
      x[0] = exp2_fast(x[0] * scale - base);
      x[1] = exp2_fast(x[1] * scale - base);
      sum += x[0];
      sum2 += x[1];
    }
    weight[half] = weight[half] * shrink[half] + (sum + sum2);
  }
}

// `first`: as DropoutBits::draw_rows wants it, for the first of the tile's keys.
template <class P>
__device__ __forceinline__ void drop(const ForwardProblem& p, float (&s)[P::kKeys / 2],
                                     uint64_t first) {
  const DropoutBits dropout(p.rng, p.dropout, true);  // again: no registers are left to keep it
#pragma unroll
  for (int c = 0; c < P::kKeys / 16; ++c) {
    uint32_t words[4];
    dropout.draw_rows(words, first + static_cast<uint64_t>(4 * c));
#pragma unroll
    for (int i = 0; i < 4; ++i) dropout.drop_pair(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1], words[i]);
  }
}

template <class P>
__device__ __forceinline__ void to_weights(uint32_t (&w)[P::kKeys / 16][4],
                                           const float (&s)[P::kKeys / 2]) {
#pragma unroll
  for (int c = 0; c < P::kKeys / 16; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      w[c][i] = wgmma::pack<typename P::T>(s[c * 8 + i * 2], s[c * 8 + i * 2 + 1]);
  }
}

}  // namespace saturate::kernels::attention
