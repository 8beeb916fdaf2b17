// SPDX-License-Identifier: Apache-2.0
// Products of tf32: the pipeline of wgmma_kernel.cuh, but both operands have k innermost, the only
// layout in which the tensor cores read 32 bits. Tiles of 128 x 256, cooperative.
#include "kernels/gemm/wgmma/wgmma_launch.cuh"
#include "kernels/hopper/wgmma_list.h"

namespace saturate::kernels::wgmma {
namespace {

struct Tf32Tile {
  using Bias = float;
  using Out = float;
  static constexpr int kM = kTf32TileM, kN = kTf32TileN, kMmas = 1, kStages = 4;
  static constexpr uint32_t kRowBytes = kTf32TileK * 4;  // of a stage: one row of the swizzle
  static constexpr uint32_t kBytesA = kM * kRowBytes, kStageBytes = kBytesA + kN * kRowBytes;
  static constexpr uint32_t kBarriersAt = kStages * kStageBytes;
  static constexpr uint32_t kSharedBytes = kBarriersAt + kStages * 16 + 1024;
  static_assert(kRowBytes == 128 && kSharedBytes <= 232448);
};
using P = Tf32Tile;

// D (64 x 256) = A B^T of eight values of k, or D += A B^T when add != 0. Sums lie as
// hopper/wgmma.cuh says.
__device__ inline void mma_tf32(float (&d)[128], uint64_t a, uint64_t b, int add) {
  asm volatile(
      "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 {" SAT_LIST_128
      "}, %128, %129, add, 1, 1;\n}"
      : SAT_SUMS_128
      : "l"(a), "l"(b), "r"(add));
}

__device__ inline void produce_rows(const Problem& p, uint32_t tiles, uint32_t full, uint32_t empty,
                                    uint32_t rank) {
  const int half = static_cast<int>(rank) * (P::kN / 2);
  uint32_t step = 0;
  for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster) {
    const Unit x = unit_of<P>(p, u, rank);
    for (int kb = x.first_k; kb < x.last_k; ++kb, ++step) {
      const uint32_t stage = step % P::kStages, round = step / P::kStages;
      const uint32_t a = tiles + stage * P::kStageBytes, b = a + P::kBytesA, bar = full + stage * 8;
      barrier_wait(empty + stage * 8, (round & 1) ^ 1);
      barrier_expect(bar, P::kStageBytes);
      load_box<false>(a, p.a, bar, kb * kTf32TileK, x.m);
      load_box<true>(b + half * P::kRowBytes, p.b, bar, kb * kTf32TileK, x.n + half);
    }
  }
}

__device__ inline void multiply_rows(float (&sum)[1][P::kN / 2], int blocks, uint32_t step, int row,
                                     uint32_t tiles, uint32_t full, uint32_t empty) {
  const uint32_t a0 = descriptor_low(tiles + row * P::kRowBytes, 16);
  const uint32_t b0 = descriptor_low(tiles + P::kBytesA, 16);
  for (int i = 0; i < blocks; ++i, ++step) {
    const uint32_t stage = step % P::kStages, at = stage * (P::kStageBytes / 16);
    barrier_wait(full + stage * 8, step / P::kStages & 1);
    mma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
      mma_tf32(sum[0], descriptor(a0 + at + kk * 2, 1024), descriptor(b0 + at + kk * 2, 1024),
               i | kk);
    }
    mma_commit();
    if (i > 0) {
      mma_wait<1>();
      release<P>(empty, step - 1);
    }
  }
  mma_wait<0>();
  release<P>(empty, step - 1);
  settle(sum[0]);
}

__global__ void __launch_bounds__(kThreads, 1)
    matmul_tf32_kernel(const __grid_constant__ Problem p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const uint32_t rank = cluster_rank();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(p, full, empty, 2);
  cluster_sync();
  await_previous_kernel();
  if (group == 0) {
    give_registers<40>();
    if (threadIdx.x == 0) produce_rows(p, tiles, full, empty, rank);
  } else {
    take_registers<232>();
    const int row = (group - 1) * 64;
    uint32_t step = 0;
    for (int u = blockIdx.x / kCluster; u < p.units; u += gridDim.x / kCluster) {
      const Unit x = unit_of<P>(p, u, rank);
      float sum[1][P::kN / 2];
      const TileBias<P> bias = load_bias<P>(p, x);
      multiply_rows(sum, x.last_k - x.first_k, step, row, tiles, full, empty);
      finish<P>(p, sum, bias, x, row);
      write_floats<P>(p, sum, x, row);
      step += x.last_k - x.first_k;
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

// 32 rows by 64 columns a block of threads.
__global__ void transpose_f32_kernel(const float* from, int64_t ld, int64_t rows, int64_t columns,
                                     float* to, int64_t ld_to) {
  __shared__ float tile[32][65];
  const int64_t row0 = int64_t{blockIdx.x} * 32, column0 = int64_t{blockIdx.y} * 64;
  const int thread = static_cast<int>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int r = i * 4 + thread / 64, c = thread % 64;
    if (row0 + r < rows && column0 + c < columns) tile[r][c] = from[(row0 + r) * ld + column0 + c];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int c = i * 8 + thread / 32, r = thread % 32;
    if (row0 + r < rows && column0 + c < columns) to[(column0 + c) * ld_to + row0 + r] = tile[r][c];
  }
}

}  // namespace

cudaError_t launch_tf32(const Problem& p, int blocks, cudaStream_t stream) {
  return launch_pairs<matmul_tf32_kernel, P::kSharedBytes>(p, blocks, stream);
}

void transpose_f32(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to,
                   int64_t ld_to, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((rows + 31) / 32),
                  static_cast<unsigned>((columns + 63) / 64));
  transpose_f32_kernel<<<grid, 256, 0, stream>>>(from, ld, rows, columns, to, ld_to);
}

}  // namespace saturate::kernels::wgmma

#include "kernels/hopper/wgmma_unlist.h"
