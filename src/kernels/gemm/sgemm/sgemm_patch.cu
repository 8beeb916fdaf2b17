// SPDX-License-Identifier: Apache-2.0
// Rung 5: 2D block tiling; a thread owns a patch of 8 x 8 elements.
//
// Idea       an outer product in registers: 8 elements of A and 8 of B give 64 multiply-adds. 16
//            shared loads feed 64 multiply-adds instead of 9 feeding 8.
// Intensity  128 x 128 tiles: 32 flops a byte of global memory; 8 flops a shared load.
// Occupancy  256 threads, 8 KB, about 140 registers a thread: one block, 12.5%. From here on
//            registers and not threads hide latency: 64 independent sums a thread.
// Predicted  16 single loads for 64 multiply-adds of a warp, and a multiprocessor issues 4
//            multiply-adds but one load a clock: 64 / 4 = 16 clocks against 16; with the bank
//            conflicts of B (lanes 8 apart) about 30 TFLOP/s.
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {
namespace {

constexpr int kTile = 128, kDepth = 8, kPatch = 8;
constexpr int kAcross = kTile / kPatch, kThreads = kAcross * kAcross;

__global__ void __launch_bounds__(kThreads) sgemm_patch_kernel(const Sgemm p) {
  __shared__ float a[kTile][kDepth], b[kDepth][kTile];
  int64_t row, col;
  sgemm_origin<kTile, kTile>(p, &row, &col);
  const int t = static_cast<int>(threadIdx.x);
  const int x = t % kAcross * kPatch, y = t / kAcross * kPatch;
  float sum[kPatch][kPatch] = {};
  for (int64_t k = 0; k < p.k; k += kDepth) {
#pragma unroll
    for (int e = t; e < kTile * kDepth; e += kThreads) {
      a[e / kDepth][e % kDepth] = sgemm_a(p, row + e / kDepth, k + e % kDepth);
      b[e / kTile][e % kTile] = sgemm_b(p, k + e / kTile, col + e % kTile);
    }
    __syncthreads();  // the tiles are whole
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
      float left[kPatch], right[kPatch];
#pragma unroll
      for (int i = 0; i < kPatch; ++i) left[i] = a[y + i][kk];
#pragma unroll
      for (int j = 0; j < kPatch; ++j) right[j] = b[kk][x + j];
#pragma unroll
      for (int i = 0; i < kPatch; ++i) {
#pragma unroll
        for (int j = 0; j < kPatch; ++j) sum[i][j] += left[i] * right[j];
      }
    }
    __syncthreads();  // everybody has read them
  }
#pragma unroll
  for (int i = 0; i < kPatch; ++i) {
#pragma unroll
    for (int j = 0; j < kPatch; ++j) sgemm_store(p, row + y + i, col + x + j, sum[i][j]);
  }
}

}  // namespace

void sgemm_patch_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_patch_kernel<<<sgemm_blocks(p, kTile, kTile), kThreads, 0, cuda::stream_of(ctx)>>>(p);
  SAT_CUDA_LAUNCHED("sgemm_patch_kernel");
}

}  // namespace saturate::kernels
