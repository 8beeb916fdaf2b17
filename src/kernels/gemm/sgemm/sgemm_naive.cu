// SPDX-License-Identifier: Apache-2.0
// Rung 1: one thread, one element of D.
//
// Idea       write the definition. Threads that follow each other take rows that follow each other,
//            so the 32 lanes of a warp read 32 rows of A and write 32 rows of D: 32 sectors of 32
//            bytes for 128 bytes of use.
// Intensity  2 flops for two loads of 4 bytes: 0.25 flop a byte, and A comes in 8 times too wide.
// Occupancy  full (2048 threads a multiprocessor): it waits for memory all the same.
// Predicted  L1 hands out one 32-byte sector per lane: a load of A takes 32 lanes / 4 sectors a
//            clock = 8 clocks or more for 32 multiply-adds; with tag look-ups about 0.4 TFLOP/s.
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {
namespace {

constexpr int kSide = 32;

__global__ void __launch_bounds__(kSide* kSide) sgemm_naive_kernel(const Sgemm p) {
  int64_t row, col;
  sgemm_origin<kSide, kSide>(p, &row, &col);
  row += threadIdx.x % kSide;
  col += threadIdx.x / kSide;
  if (row >= p.m || col >= p.n) return;
  float sum = 0.0f;
  for (int64_t k = 0; k < p.k; ++k) sum += p.a[row * p.lda + k] * p.b[k * p.ldb + col];
  sgemm_store(p, row, col, sum);
}

}  // namespace

void sgemm_naive_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_naive_kernel<<<sgemm_blocks(p, kSide, kSide), kSide * kSide, 0, cuda::stream_of(ctx)>>>(p);
  SAT_CUDA_LAUNCHED("sgemm_naive_kernel");
}

}  // namespace saturate::kernels
