// SPDX-License-Identifier: Apache-2.0
// What the tensor-core kernels of attention add to kernels/device/mma.cuh: copies of whole tiles
// and the way of a warp's rows to memory.
#pragma once
#include "kernels/attention/device.cuh"
#include "kernels/device/mma.cuh"

namespace saturate::kernels::attention {

// Starts copying kRows rows into the tile at shared address `tile`; rows from `valid` on become
// zero and are not read. Finished after copy_commit and copy_wait, for all after a barrier.
template <int kD, int kRows, int kThreads, class T>
__device__ __forceinline__ void copy_tile(uint32_t tile, const T* src, int64_t stride, int valid) {
  constexpr int kChunks = kD / 8;
#pragma unroll
  for (int e = 0; e < kRows * kChunks; e += kThreads) {
    const int at = e + static_cast<int>(threadIdx.x);
    if (kRows * kChunks % kThreads != 0 && at >= kRows * kChunks) break;
    const int row = at / kChunks, chunk = at % kChunks;
    const bool read = row < valid;
    const T* from = src + (read ? row * stride : 0) + chunk * 8;
    copy_chunk(tile + chunk_at<kD>(row, chunk), from, read ? 16 : 0);
  }
}
// Two neighbouring accumulators (16 x 16) as a left operand: the layouts agree, nothing moves.
template <class T>
__device__ __forceinline__ void to_left(uint32_t (&f)[4], const float (&a)[4],
                                        const float (&b)[4]) {
  f[0] = pack<T>(a[0], a[1]);
  f[1] = pack<T>(a[2], a[3]);
  f[2] = pack<T>(b[0], b[1]);
  f[3] = pack<T>(b[2], b[3]);
}

// 2^x; relative error 2^-22 and results below 2^-126 are 0 (PTX ISA, ex2.approx.ftz.f32).
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Writes a warp's 16 rows of accumulators times `factor` (of the upper and lower row of each lane)
// to memory through its own 16 rows of a tile, so that whole 16-byte chunks leave. `rows` are
// valid.
template <class T, int kD>
__device__ __forceinline__ void write_rows(T* dst, int64_t stride, int rows, unsigned char* tile,
                                           int tile_row, const float (&c)[kD / 8][4], float upper,
                                           float lower) {
  const int l = lane();
  __syncwarp();  // the warp's fragments of these rows have been read
#pragma unroll
  for (int n = 0; n < kD / 8; ++n) {
    const int in_chunk = l % 4 * 4;
    *reinterpret_cast<uint32_t*>(tile + chunk_at<kD>(tile_row + l / 4, n) + in_chunk) =
        pack<T>(c[n][0] * upper, c[n][1] * upper);
    *reinterpret_cast<uint32_t*>(tile + chunk_at<kD>(tile_row + l / 4 + 8, n) + in_chunk) =
        pack<T>(c[n][2] * lower, c[n][3] * lower);
  }
  __syncwarp();  // the rows are complete
#pragma unroll
  for (int e = l; e < 16 * kD / 8; e += 32) {
    const int row = e / (kD / 8), chunk = e % (kD / 8);
    if (row < rows)
      *reinterpret_cast<uint4*>(dst + row * stride + chunk * 8) =
          *reinterpret_cast<const uint4*>(tile + chunk_at<kD>(tile_row + row, chunk));
  }
}

}  // namespace saturate::kernels::attention
