// SPDX-License-Identifier: Apache-2.0
// Rung 2: the lanes of a warp take neighbouring columns.
//
// Idea       swap the roles of the two thread indices. Now a warp reads one element of A (all lanes
//            the same: one broadcast) and 32 neighbours of B (one 128-byte line).
// Intensity  still 0.25 flop a byte asked for, but every byte that moves is used.
// Occupancy  full.
// Predicted  two loads of a warp for 32 multiply-adds, about one load every 2 clocks from L1:
//            132 multiprocessors x 32 x 2 flops / 4 clocks x 1.9 GHz = 4 TFLOP/s, ten times rung 1.
#include "kernels/gemm/sgemm/sgemm_problem.cuh"

namespace saturate::kernels {
namespace {

constexpr int kSide = 32;

__global__ void __launch_bounds__(kSide* kSide) sgemm_coalesced_kernel(const Sgemm p) {
  int64_t row, col;
  sgemm_origin<kSide, kSide>(p, &row, &col);
  row += threadIdx.x / kSide;
  col += threadIdx.x % kSide;
  if (row >= p.m || col >= p.n) return;
  float sum = 0.0f;
  for (int64_t k = 0; k < p.k; ++k) sum += p.a[row * p.lda + k] * p.b[k * p.ldb + col];
  sgemm_store(p, row, col, sum);
}

}  // namespace

void sgemm_coalesced_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_coalesced_kernel<<<sgemm_blocks(p, kSide, kSide), kSide * kSide, 0, cuda::stream_of(ctx)>>>(
      p);
  SAT_CUDA_LAUNCHED("sgemm_coalesced_kernel");
}

}  // namespace saturate::kernels
