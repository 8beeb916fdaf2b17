// SPDX-License-Identifier: Apache-2.0
// Rung 4: 1D block tiling; a thread owns a column of 8 elements.
//
// Idea       keep one element of B in a register and use it for 8 rows: 9 shared loads feed 8
//            multiply-adds instead of 16. The A loads are broadcasts.
// Intensity  64 x 64 tiles: 16 flops a byte of global memory; 1.8 flops a shared load.
// Occupancy  512 threads, 4 KB a block, about 40 registers: 3 blocks of 4 possible, 75%.
// Predicted  twice rung 3, 15 TFLOP/s: the shared loads halve and are still the limit.
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {
namespace {

constexpr int kTile = 64, kDepth = 8, kRows = 8;
constexpr int kThreads = kTile * kTile / kRows;
static_assert(kThreads == kTile * kDepth, "each thread copies one element of A and one of B");

__global__ void __launch_bounds__(kThreads) sgemm_column_kernel(const Sgemm p) {
  __shared__ float a[kTile][kDepth], b[kDepth][kTile];
  int64_t row, col;
  sgemm_origin<kTile, kTile>(p, &row, &col);
  const int x = threadIdx.x % kTile, y = threadIdx.x / kTile * kRows;
  float sum[kRows] = {};
  for (int64_t k = 0; k < p.k; k += kDepth) {
    const int t = static_cast<int>(threadIdx.x);
    a[t / kDepth][t % kDepth] = sgemm_a(p, row + t / kDepth, k + t % kDepth);
    b[t / kTile][t % kTile] = sgemm_b(p, k + t / kTile, col + t % kTile);
    __syncthreads();  // the tiles are whole
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
      const float right = b[kk][x];
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] += a[y + i][kk] * right;
    }
    __syncthreads();  // everybody has read them
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) sgemm_store(p, row + y + i, col + x, sum[i]);
}

}  // namespace

void sgemm_column_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_column_kernel<<<sgemm_blocks(p, kTile, kTile), kThreads, 0, cuda::stream_of(ctx)>>>(p);
  SAT_CUDA_LAUNCHED("sgemm_column_kernel");
}

}  // namespace saturate::kernels
