// SPDX-License-Identifier: Apache-2.0
// Tensor-core building blocks (compute capability 8.0): 16-bit tiles in swizzled shared memory,
// asynchronous copies into them, fragments, and the m16n8k16 product (PTX ISA, "Matrix fragments
// for mma.m16n8k16").
//
// In an accumulator fragment of 16 x 8, lane l holds elements 0, 1 at row l/4, columns 2*(l%4) +
// {0, 1} and elements 2, 3 eight rows below.
#pragma once
#include "kernels/attention/attention_device.cuh"

namespace saturate::kernels::attention {

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// Byte offset of 8 elements (one 16-byte chunk) in a tile of rows of kD elements. The chunk index
// is mixed with the row so that 8 rows of one column of chunks lie in different banks.
template <int kD>
__device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
  static_assert(kD == 32 || kD % 64 == 0);
  const int mixed = kD == 32 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
  return static_cast<uint32_t>(row * kD * 2 + mixed * 16);
}

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
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(tile + chunk_at<kD>(row, chunk)),
        "l"(from), "r"(read ? 16 : 0)
        : "memory");
  }
}
__device__ __forceinline__ void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kOpen of this thread's groups are unfinished.
template <int kOpen>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kOpen) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&f)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(at)
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&f)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f[0]), "=r"(f[1]), "=r"(f[2]), "=r"(f[3])
               : "r"(at)
               : "memory");
}

// Left operand: rows row..row+15, columns 16*k..16*k+15 of a tile.
template <int kD>
__device__ __forceinline__ void load_left(uint32_t (&f)[4], uint32_t tile, int row, int k) {
  load_matrices(f, tile + chunk_at<kD>(row + lane() % 16, 2 * k + lane() / 16));
}
// Right operand for products with the tile's transpose: its rows row..row+15 are 16 columns of the
// product (f[0], f[1] the first eight), its columns 16*k.. the summed index.
template <int kD>
__device__ __forceinline__ void load_right_rows(uint32_t (&f)[4], uint32_t tile, int row, int k) {
  const int l = lane();
  load_matrices(f, tile + chunk_at<kD>(row + l % 8 + l / 16 * 8, 2 * k + l / 8 % 2));
}
// Right operand for products with the tile itself: rows row..row+15 are the summed index, columns
// 16*n.. the columns of the product (f[0], f[1] the first eight).
template <int kD>
__device__ __forceinline__ void load_right_columns(uint32_t (&f)[4], uint32_t tile, int row,
                                                   int n) {
  load_matrices_transposed(f, tile + chunk_at<kD>(row + lane() % 16, 2 * n + lane() / 16));
}

template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two floats rounded to T in one register, the first in the low half.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  T pair[2];
  from_pair(pair, low, high);
  uint32_t bits;
  memcpy(&bits, pair, 4);
  return bits;
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
