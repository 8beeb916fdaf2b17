// SPDX-License-Identifier: Apache-2.0
// Largest values of a row of logits in order, as 64-bit ranks: the larger value first, then the
// smaller index, as one unsigned comparison. Rank 0 is "none"; not-a-number has no rank.
#pragma once
#include <cstdint>
#include <limits>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"

namespace saturate::kernels {

__device__ __forceinline__ uint64_t rank_of(float v, int index) {
  if (v != v) return 0;
  const uint32_t u = __float_as_uint(v + 0.0f);  // -0 ranks as +0
  const uint32_t ordered = (u & 0x80000000u) != 0 ? ~u : u | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | ~static_cast<uint32_t>(index);
}
__device__ __forceinline__ float ranked_value(uint64_t rank) {
  const auto ordered = static_cast<uint32_t>(rank >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7FFFFFFFu : ~ordered);
}
__device__ __forceinline__ int ranked_index(uint64_t rank) {
  return static_cast<int>(~static_cast<uint32_t>(rank));
}

__device__ __forceinline__ uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// All lanes call and each gets the result.
__device__ __forceinline__ uint64_t warp_best(uint64_t v) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v = larger(v, __shfl_xor_sync(0xFFFFFFFFu, v, offset));
  }
  return v;
}
// All threads call and each gets the result; `shared` holds 32 numbers.
__device__ __forceinline__ uint64_t block_best(uint64_t v, uint64_t* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = blockDim.x / kWarp;
  v = warp_best(v);
  __syncthreads();  // the previous use of `shared` has been read
  if (lane == 0) shared[warp] = v;
  __syncthreads();  // all warps' values are there
  return warp_best(lane < warps ? shared[lane] : 0);
}

// What one thread knows of its columns: best rank, largest value, sum of e^(z - top).
struct RowScan {
  uint64_t best = 0;
  float top = -std::numeric_limits<float>::infinity(), sum = 0.0f;
};

// Thread i of the block has the columns [i N, i N + N), then every blockDim.x * N further on.
template <class T, int N>
__device__ __forceinline__ RowScan scan_row(const T* z, int vocab, int banned) {
  RowScan r;
  float best = 0.0f;
  int best_index = -1;
  for (int c = threadIdx.x * N; c < vocab; c += blockDim.x * N) {
    float v[N];
    load(v, z + c);
    float top = r.top;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (c + i >= vocab) v[i] = -CUDART_INF_F;
      top = fmaxf(top, v[i]);
    }
    r.sum = top == -CUDART_INF_F ? 0.0f : r.sum * __expf(r.top - top);
    r.top = top;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (c + i >= vocab) break;
      if (v[i] > -CUDART_INF_F || v[i] != v[i]) r.sum += __expf(v[i] - top);
      if (c + i != banned && (best_index < 0 ? v[i] == v[i] : v[i] > best)) {
        best = v[i];
        best_index = c + i;
      }
    }
  }
  if (best_index >= 0) r.best = rank_of(best, best_index);
  return r;
}

// The best of this thread's columns that ranks below `last`.
template <class T, int N>
__device__ __forceinline__ uint64_t next_best(const T* z, int vocab, int banned, uint64_t last) {
  uint64_t best = 0;
  for (int c = threadIdx.x * N; c < vocab; c += blockDim.x * N) {
    float v[N];
    load(v, z + c);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint64_t rank = c + i < vocab && c + i != banned ? rank_of(v[i], c + i) : 0;
      if (rank < last) best = larger(best, rank);
    }
  }
  return best;
}

}  // namespace saturate::kernels
