// SPDX-License-Identifier: Apache-2.0
// Sums of a tile's columns in an epilogue: in a warp by exchange between lanes, then over the four warps of a consumer by way
// of shared memory. Every sum has one order.
#pragma once
#include "kernels/gemm/wgmma/wgmma_kernel.cuh"

namespace saturate::kernels::wgmma {

// value[2 i + e] of the eight lanes that hold rows of the same columns, summed: column 8 i + 2 (lane % 4) + e
// of 32. The lanes halve among them which columns they sum, in a fixed order. Returns the sum of column
// `lane_column()`.
__device__ inline float fold_rows(float (&value)[8]) {
  const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int kept = 4; kept > 0; kept /= 2) {
    const bool upper = lane & kept * 4;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float got = __shfl_xor_sync(~0u, upper ? value[i] : value[i + kept], kept * 4);
      value[i] = (upper ? value[i + kept] : value[i]) + got;
    }
  }
  return value[0];
}
__device__ inline int lane_column() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  return (lane / 16 * 2 + lane / 8 % 2) * 8 + lane % 4 * 2 + lane / 4 % 2;
}

// Sums of the tile's columns over this consumer's rows, from its four warps' `sums` behind a barrier, go
// to row (x.m + row) / P::kRows of `partial`. Rows beyond the problem hold zeros (TMA), which change nothing.
template <class P>
__device__ inline void write_sums(const Problem& p, const Unit& x, int row, const float* sums) {
  const int col = static_cast<int>(threadIdx.x % 128) * 2;
  if (col >= P::kN || x.m + row >= p.m || x.n + col >= p.n) return;
  float2 total = make_float2(0.0f, 0.0f);
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    const float2 part = *reinterpret_cast<const float2*>(sums + w * P::kN + col);
    total.x += part.x;
    total.y += part.y;
  }
  const int64_t group = (x.m + row) / P::kRows;
  *reinterpret_cast<float2*>(p.partial + group * p.n + x.n + col) = total;
}

}  // namespace saturate::kernels::wgmma
