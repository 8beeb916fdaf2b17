// SPDX-License-Identifier: Apache-2.0
// Sums and maxima over a warp and a block in a fixed order: the same bits every run.
#pragma once
#include <cuda_runtime.h>
#include <math_constants.h>

namespace saturate::kernels {

constexpr int kWarp = 32;

struct SumOf {
  __device__ __forceinline__ float operator()(float a, float b) const { return a + b; }
};
struct MaxOf {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// All 32 lanes must call; each gets the result. Butterfly: every lane adds in the same tree.
template <class Op>
__device__ __forceinline__ float warp_reduce(float v, Op op) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v = op(v, __shfl_xor_sync(0xFFFFFFFFu, v, offset));
  }
  return v;
}
__device__ __forceinline__ float warp_sum(float v) { return warp_reduce(v, SumOf{}); }
__device__ __forceinline__ float warp_max(float v) { return warp_reduce(v, MaxOf{}); }

// All threads of the block must call; blockDim.x is a multiple of 32 (at most 1024); each thread
// gets the result. `shared` holds 32 floats and may be used again at once by the next reduction.
template <class Op>
__device__ __forceinline__ float block_reduce(float v, float* shared, float identity, Op op) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  v = warp_reduce(v, op);
  if (warps == 1) return v;
  __syncthreads();  // the previous use of `shared` has been read
  if (lane == 0) shared[warp] = v;
  __syncthreads();  // all warps' values are there
  return warp_reduce(lane < warps ? shared[lane] : identity, op);
}
__device__ __forceinline__ float block_sum(float v, float* shared) {
  return block_reduce(v, shared, 0.0f, SumOf{});
}
__device__ __forceinline__ float block_max(float v, float* shared) {
  return block_reduce(v, shared, -CUDART_INF_F, MaxOf{});
}

// The sums of N values at once, each as warp_sum gives it (team of one warp, `shared` unused) or
// over the block in order of the warps. `shared` holds 32 * N floats; the conditions of
// block_reduce hold.
enum class Team { warp, block };
template <Team kTeam, int N>
__device__ __forceinline__ void team_sum(float (&v)[N], float* shared) {
#pragma unroll
  for (int i = 0; i < N; ++i) v[i] = warp_sum(v[i]);
  if constexpr (kTeam == Team::block) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
    __syncthreads();  // the previous use of `shared` has been read
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (lane == 0) shared[i * kWarp + warp] = v[i];
    }
    __syncthreads();  // all warps' values are there
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = warp_sum(lane < warps ? shared[i * kWarp + lane] : 0.0f);
  }
}

}  // namespace saturate::kernels
