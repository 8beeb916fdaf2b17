// SPDX-License-Identifier: Apache-2.0
// Tensor-core building blocks (compute capability 7.5): 16-bit tiles in swizzled shared memory,
// fragments, the 16 x 8 x 16 product (PTX ISA, "Matrix fragments for mma.m16n8k16"), and for 8.0
// asynchronous copies.
//
// In an accumulator fragment of 16 x 8, lane l holds elements 0, 1 at row l/4, columns 2*(l%4) +
// {0, 1} and elements 2, 3 eight rows below.
#pragma once
#include <cstring>

#include "kernels/device/vector.cuh"

namespace saturate::kernels {

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// Byte offset of 8 elements (one 16-byte chunk) in a tile of rows of kD elements. The chunk index
// is mixed with the row so that 8 rows of one column of chunks lie in different banks.
template <int kD>
__device__ __forceinline__ uint32_t chunk_at(int row, int chunk) {
  static_assert(kD == 32 || kD % 64 == 0);
  const int mixed = kD == 32 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
  return static_cast<uint32_t>(row * kD * 2 + mixed * 16);
}

// Starts copying 16 bytes to shared address `to`; only the first `bytes` are read, the rest become
// zero. Finished after copy_commit and copy_wait, for all after a barrier.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
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
// Left operand from a tile whose rows row..row+15 are the summed index, columns 16*m.. the rows of
// the product.
template <int kD>
__device__ __forceinline__ void load_left_columns(uint32_t (&f)[4], uint32_t tile, int row, int m) {
  const int l = lane();
  load_matrices_transposed(f, tile + chunk_at<kD>(row + l % 8 + l / 16 * 8, 2 * m + l / 8 % 2));
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

// c += a b. f16 also runs on compute capability 7.5, as two products of depth 8.
template <class T>
__device__ __forceinline__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                             uint32_t b1) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  static_assert(std::is_same_v<T, __half>, "bf16 needs compute capability 8.0");
  const auto half_depth = [&c](uint32_t upper, uint32_t lower, uint32_t right) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(upper), "r"(lower), "r"(right));
  };
  half_depth(a[0], a[1], b0);
  half_depth(a[2], a[3], b1);
#endif
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

}  // namespace saturate::kernels
