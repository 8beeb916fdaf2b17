// SPDX-License-Identifier: Apache-2.0
// Rung 6: 16 bytes an instruction.
//
// Idea       copy A into shared memory transposed, so that the 8 rows a thread needs at one k are
//            neighbours: its patch takes 4 loads of 16 bytes instead of 16 of 4. Global memory is
//            read and written 16 bytes at a time too. The patch is four 4 x 4 corners 64 apart, so
//            that the 16-byte loads of neighbouring lanes are neighbours and no bank serves two.
// Intensity  as rung 5 in global memory; 32 flops a shared load.
// Occupancy  as rung 5: two blocks of 256 threads. The rows of A are padded by 4 floats so that the
//            transposing stores of a warp spread over the banks.
// Predicted  4 loads for 64 multiply-adds: the loads no longer limit, waiting for the tiles between
//            two barriers does: 36 TFLOP/s.
#include "kernels/gemm/sgemm/sgemm_vectorised.cuh"

namespace saturate::kernels {
namespace {

constexpr int kTile = 128, kDepth = 8, kThreads = 256, kHalf = kTile / 2;
static_assert(kTile * kDepth == kThreads * 4, "each thread copies 4 elements of A and 4 of B");

__global__ void __launch_bounds__(kThreads, 2)
    sgemm_vectorised_kernel(const Sgemm p, const SgemmAlignment aligned) {
  __shared__ __align__(16) float a[kDepth][kTile + 4], b[kDepth][kTile];
  int64_t row, col;
  sgemm_origin<kTile, kTile>(p, &row, &col);
  const int t = static_cast<int>(threadIdx.x);
  const int a_row = t / 2, a_k = t % 2 * 4, b_k = t / 32, b_col = t % 32 * 4;
  float sum[8][8] = {};
  for (int64_t k = 0; k < p.k; k += kDepth) {
    const float4 from_a = sgemm_load4(p.a, p.m, p.k, p.lda, row + a_row, k + a_k, aligned.a);
    const float4 from_b = sgemm_load4(p.b, p.k, p.n, p.ldb, k + b_k, col + b_col, aligned.b);
    a[a_k][a_row] = from_a.x;
    a[a_k + 1][a_row] = from_a.y;
    a[a_k + 2][a_row] = from_a.z;
    a[a_k + 3][a_row] = from_a.w;
    *reinterpret_cast<float4*>(&b[b_k][b_col]) = from_b;
    __syncthreads();  // the tiles are whole
    const int x = t % 16 * 4, y = t / 16 * 4;
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
      float left[8], right[8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        *reinterpret_cast<float4*>(left + 4 * h) =
            *reinterpret_cast<const float4*>(&a[kk][y + h * kHalf]);
        *reinterpret_cast<float4*>(right + 4 * h) =
            *reinterpret_cast<const float4*>(&b[kk][x + h * kHalf]);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) sum[i][j] += left[i] * right[j];
      }
    }
    __syncthreads();  // everybody has read them
  }
  const int x = t % 16 * 4, y = t / 16 * 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sgemm_store4(p, row + y + i / 4 * kHalf + i % 4, col + x + h * kHalf, sum[i] + 4 * h,
                   aligned.d);
    }
  }
}

}  // namespace

void sgemm_vectorised_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_vectorised_kernel<<<sgemm_blocks(p, kTile, kTile), kThreads, 0, cuda::stream_of(ctx)>>>(
      p, sgemm_alignment(p));
  SAT_CUDA_LAUNCHED("sgemm_vectorised_kernel");
}

}  // namespace saturate::kernels
