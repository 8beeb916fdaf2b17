// SPDX-License-Identifier: Apache-2.0
// What the tensor-core kernels of attention add to kernels/device/mma.cuh: copies of whole tiles,
// dropout of a fragment, the way of a warp's rows to memory.
#pragma once
#include "kernels/attention/attention_device.cuh"
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

// Which of a fragment's elements dropout keeps, for scores with queries in rows. `row0` is
// random_row of the fragment's first row plus its first key / 4; a row further is 2^14 blocks
// further. Two neighbouring lanes share each block of four keys: the even one draws it for the
// upper row, the odd one for the lower, and they exchange halves.
__device__ __forceinline__ void draw_rows(uint32_t (&bits)[4], const uint64_t seed,
                                          const uint64_t step, uint32_t op, uint64_t row0) {
  const int l = lane(), odd = l & 1;
  const uint64_t block = row0 + (static_cast<uint64_t>(l / 4 + 8 * odd) << 14) + (l >> 1 & 1);
  const Random4 r = random_block(seed, step, op, block);
  const uint32_t x = __shfl_xor_sync(0xFFFFFFFFu, odd ? r.x[0] : r.x[2], 1);
  const uint32_t y = __shfl_xor_sync(0xFFFFFFFFu, odd ? r.x[1] : r.x[3], 1);
  bits[0] = odd ? x : r.x[0];
  bits[1] = odd ? y : r.x[1];
  bits[2] = odd ? r.x[2] : x;
  bits[3] = odd ? r.x[3] : y;
}

// The same for scores with keys in rows: `column0` is random_row of the fragment's first query plus
// its first key / 4. Four lanes (keys 4n..4n+3) share four blocks (two queries, two groups of keys
// eight rows apart): each draws one, then the 4 x 4 words are transposed among them.
__device__ __forceinline__ void draw_columns(uint32_t (&bits)[4], const uint64_t seed,
                                             const uint64_t step, uint32_t op, uint64_t column0) {
  const int l = lane(), own = l / 4 % 4;
  // Block e of the four serves element e of the fragment: query 2*(l%4) + e%2, keys eight lower if
  // e/2.
  const uint64_t block = column0 + (static_cast<uint64_t>(2 * (l % 4) + own % 2) << 14) +
                         static_cast<uint64_t>(l / 16 + own / 2 * 2);
  const Random4 r = random_block(seed, step, op, block);
  const bool right = own & 1, low = own & 2;
  // First exchange 1 x 1 corners between lanes 4 apart, then 2 x 2 corners between lanes 8 apart.
  const uint32_t a = __shfl_xor_sync(0xFFFFFFFFu, right ? r.x[0] : r.x[1], 4);
  const uint32_t b = __shfl_xor_sync(0xFFFFFFFFu, right ? r.x[2] : r.x[3], 4);
  const uint32_t x0 = right ? a : r.x[0], x1 = right ? r.x[1] : a;
  const uint32_t x2 = right ? b : r.x[2], x3 = right ? r.x[3] : b;
  const uint32_t c = __shfl_xor_sync(0xFFFFFFFFu, low ? x0 : x2, 8);
  const uint32_t d = __shfl_xor_sync(0xFFFFFFFFu, low ? x1 : x3, 8);
  bits[0] = low ? c : x0;
  bits[1] = low ? d : x1;
  bits[2] = low ? x2 : c;
  bits[3] = low ? x3 : d;
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
