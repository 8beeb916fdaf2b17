// SPDX-License-Identifier: Apache-2.0
// The two products of the output layer around a softmax that is stored nowhere (loss/linear_cross_entropy.h).
#pragma once
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/gemm/wgmma/wgmma_loss.h"

namespace saturate::kernels::wgmma {

template <class T>
struct ExponentialTile : EpilogueTile<T, true> {
  static constexpr bool kExponentials = true;
};
template <class T>
struct ScaledRowsTile : Tile<T, T, kLossTileM, kLossTileN, 4, false, true, false> {
  static constexpr bool kScaledRows = true;
};

// Row of the result that half `half` of this thread's values belongs to: two for each 64 rows.
__device__ inline int row_of_half(const Unit& x, int row, int half) {
  const int thread = static_cast<int>(threadIdx.x % 128);
  return x.m + row + half / 2 * 64 + thread / 32 * 16 + thread % 32 / 4 + half % 2 * 8;
}

template <class P>
__device__ inline void exponentiate(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                    const TileBias<P>& bias, const Unit& x, int row) {
  static_assert(P::kM == kLossTileM && P::kN == kTurnTileN);
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr int kHalves = P::kMmas * 2;  // rows of this thread
  float shift[kHalves];
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const int r = row_of_half(x, row, h);
    shift[h] = r < p.m ? -kLog2E * static_cast<const float*>(p.c)[r] : 0.0f;
  }
#pragma unroll
  for (int j = 0; j < P::kN / 8; ++j) {
    const float2 b = p.bias != nullptr ? bias_at<P>(bias, j) : make_float2(0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kHalves * 2; ++i) {
      float& v = sum[i / 4][j * 4 + i % 4];
      const float z = v + (i % 2 == 0 ? b.x : b.y);
      const float exponent = fminf(fmaf(z, kLog2E, shift[i / 2]), p.alpha);
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(v) : "f"(exponent));  // relative error 2^-22
    }
  }
  if (x.n + P::kN > p.classes) {
    const int first = x.n + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int j = 0; j < P::kN / 8; ++j) {
#pragma unroll
      for (int i = 0; i < kHalves * 2; ++i)
        if (first + j * 8 + i % 2 >= p.classes) sum[i / 4][j * 4 + i % 4] = 0.0f;
    }
  }
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    float part[4] = {};  // sums side by side: one alone would wait for each addition
#pragma unroll
    for (int j = 0; j < P::kN / 8; ++j) {
      const float* const two = &sum[h / 2][j * 4 + h % 2 * 2];
      part[j % 4] += two[0] + two[1];
    }
    float total = (part[0] + part[1]) + (part[2] + part[3]);
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    const int r = row_of_half(x, row, h);
    if (threadIdx.x % 4 == 0 && r < p.m)
      p.partial[static_cast<int64_t>(x.n / P::kN) * p.m + r] = total;
  }
}

// The bias is read here, behind sums that are long: kept through them it does not fit in the registers.
template <class P>
__device__ inline void scale_rows(const Problem& p, float (&sum)[P::kMmas][P::kN / 2],
                                  const Unit& x, int row) {
  static_assert(P::kMmas == 1);
  const int first = x.n + static_cast<int>(threadIdx.x % 4) * 2;
  const auto* const bias = static_cast<const float*>(p.bias) + first;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = row_of_half(x, row, half);
    const float factor = r < p.m ? static_cast<const float*>(p.c)[r] : 0.0f;
    const bool biased = p.bias != nullptr && factor != 0.0f;
#pragma unroll
    for (int j = 0; j < P::kN / 8; ++j) {
      float2 b = make_float2(0.0f, 0.0f);
      if (biased && first + j * 8 < p.n) b = *reinterpret_cast<const float2*>(bias + j * 8);
      float* const v = &sum[0][j * 4 + half * 2];
      v[0] = fmaf(v[0], factor, b.x);
      v[1] = fmaf(v[1], factor, b.y);
      if (j % 4 == 3) asm volatile("" ::: "memory");  // more loads ahead would not fit either
    }
  }
}

template <class T>
cudaError_t launch_exponentials(const Problem& p, int blocks, cudaStream_t stream) {
  return launch<ExponentialTile<T>>(p, blocks, stream);
}
template <class T>
cudaError_t launch_scaled_rows(const Problem& p, int blocks, cudaStream_t stream) {
  return launch<ScaledRowsTile<T>>(p, blocks, stream);
}

}  // namespace saturate::kernels::wgmma
