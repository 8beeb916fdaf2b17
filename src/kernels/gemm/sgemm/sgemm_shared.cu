// SPDX-License-Identifier: Apache-2.0
// Rung 3: tiles in shared memory.
//
// Idea       a block of 32 x 32 threads copies a 32 x 32 tile of A and of B once and uses each
//            element 32 times from shared memory.
// Intensity  global memory: 2 * 32^3 flops for 2 * 32^2 * 4 bytes = 8 flops a byte (32 times rung
//            2). Shared memory: still two loads for one multiply-add, and that is the limit now.
// Occupancy  full: 8 KB of shared memory and 1024 threads a block, two blocks a multiprocessor.
// Predicted  the inner loop reads A four steps at a time (the compiler makes one 16-byte broadcast
//            of them) and B one by one: 1.25 shared loads for 32 multiply-adds of a warp at one
//            load a clock per multiprocessor, about 7 TFLOP/s with the barriers.
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {
namespace {

constexpr int kSide = 32;

__global__ void __launch_bounds__(kSide* kSide) sgemm_shared_kernel(const Sgemm p) {
  __shared__ float a[kSide][kSide], b[kSide][kSide];
  int64_t row, col;
  sgemm_origin<kSide, kSide>(p, &row, &col);
  const int y = threadIdx.x / kSide, x = threadIdx.x % kSide;
  float sum = 0.0f;
  for (int64_t k = 0; k < p.k; k += kSide) {
    a[y][x] = sgemm_a(p, row + y, k + x);
    b[y][x] = sgemm_b(p, k + y, col + x);
    __syncthreads();  // the tiles are whole
#pragma unroll
    for (int kk = 0; kk < kSide; ++kk) sum += a[y][kk] * b[kk][x];
    __syncthreads();  // everybody has read them
  }
  sgemm_store(p, row + y, col + x, sum);
}

}  // namespace

void sgemm_shared_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_shared_kernel<<<sgemm_blocks(p, kSide, kSide), kSide * kSide, 0, cuda::stream_of(ctx)>>>(p);
  SAT_CUDA_LAUNCHED("sgemm_shared_kernel");
}

}  // namespace saturate::kernels
