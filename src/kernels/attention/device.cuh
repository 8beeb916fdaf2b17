// SPDX-License-Identifier: Apache-2.0
// What the CUDA implementations share: the piece of work of a block.
#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/device/vector.cuh"

namespace saturate::kernels::attention {

constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

// Rows of one sequence: first row and count.
struct Rows {
  int first, count;
};
__device__ __forceinline__ Rows rows_of(const int32_t* cu, int sequence) {
  const int first = cu[sequence];
  return {first, cu[sequence + 1] - first};
}

template <class T>
__device__ __forceinline__ const T* row_of(const void* base, int64_t row, int64_t stride,
                                           int64_t head, int64_t head_size) {
  return static_cast<const T*>(base) + row * stride + head * head_size;
}
template <class T>
__device__ __forceinline__ T* row_of(void* base, int64_t row, int64_t stride, int64_t head,
                                     int64_t head_size) {
  return static_cast<T*>(base) + row * stride + head * head_size;
}

// o = 0 and lse = 0 for this head's rows after the last sequence; shared out among `tiles` blocks.
template <class T>
__device__ void zero_tail(const AttentionArgs& a, int head, int tile, int tiles) {
  const int64_t size = a.v_head_size == 0 ? a.head_size : a.v_head_size;
  for (int64_t r = a.cu_q[a.sequences] + tile; r < a.q_rows; r += tiles) {
    T* o = row_of<T>(a.o, r, a.o_stride, head, size);
    for (int64_t d = threadIdx.x; d < size; d += blockDim.x) o[d] = from_float<T>(0.0f);
    if (threadIdx.x == 0) static_cast<float*>(a.lse)[head * a.q_rows + r] = 0.0f;
  }
}

// Number of the block of random numbers of a query row and key 0 (dropout.h); rng as
// attention_dropout_rows leaves it.
__device__ __forceinline__ uint64_t random_row(const RngRef& rng, int head, int64_t row) {
  return static_cast<uint64_t>(head * rng.rows + rng.first_row + row) << 14;
}
__device__ __forceinline__ uint64_t random_row(const AttentionArgs& a, int head, int64_t row) {
  return random_row(a.rng, head, row);
}

}  // namespace saturate::kernels::attention
