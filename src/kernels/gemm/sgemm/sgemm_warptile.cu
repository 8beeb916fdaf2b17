// SPDX-License-Identifier: Apache-2.0
// Rung 7: warp tiling; a level between block and thread.
//
// Idea       in rung 6 a warp covers 8 x 128 elements of the tile and reads 136 floats a step.
//            Give it a square: 64 x 32, 4 x 8 lanes with patches of 16 x 4 floats in four strips.
//            It reads 96 floats a step, lanes of one row share their loads, and each scheduler
//            works on its own square. Next tile's global loads start before this tile's products.
// Intensity  as rung 5 in global memory; a warp's shared traffic is 0.7 of rung 6.
// Occupancy  256 threads, 16 KB, at most 128 registers: two blocks.
// Predicted  the copy's latency is hidden behind 8 steps: 40 TFLOP/s.
#include "kernels/gemm/sgemm/sgemm_vectorised.cuh"

namespace saturate::kernels {
namespace {

constexpr int kTile = 128, kDepth = 8, kThreads = 256;
constexpr int kWarpRows = 64, kWarpCols = 32;

__global__ void __launch_bounds__(kThreads, 2)
    sgemm_warptile_kernel(const Sgemm p, const SgemmAlignment aligned) {
  // Two of each: one is read while the other is filled, so one barrier a tile is enough.
  __shared__ __align__(16) float a[2][kDepth][kTile + 4], b[2][kDepth][kTile];
  int64_t row, col;
  sgemm_origin<kTile, kTile>(p, &row, &col);
  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;
  const int y = warp / 4 * kWarpRows + lane / 8 * 4, x = warp % 4 * kWarpCols + lane % 8 * 4;
  const int a_row = t / 2, a_k = t % 2 * 4, b_k = t / 32, b_col = t % 32 * 4;
  const auto fetch_a = [&](int64_t k) {
    return sgemm_load4(p.a, p.m, p.k, p.lda, row + a_row, k + a_k, aligned.a);
  };
  const auto fetch_b = [&](int64_t k) {
    return sgemm_load4(p.b, p.k, p.n, p.ldb, k + b_k, col + b_col, aligned.b);
  };
  float4 next_a = fetch_a(0), next_b = fetch_b(0);
  float sum[16][4] = {};
  int now = 0;
  for (int64_t k = 0; k < p.k; k += kDepth, now ^= 1) {
    a[now][a_k][a_row] = next_a.x;
    a[now][a_k + 1][a_row] = next_a.y;
    a[now][a_k + 2][a_row] = next_a.z;
    a[now][a_k + 3][a_row] = next_a.w;
    *reinterpret_cast<float4*>(&b[now][b_k][b_col]) = next_b;
    __syncthreads();  // tile `now` is whole, and nobody reads the other one any more
    next_a = fetch_a(k + kDepth);
    next_b = fetch_b(k + kDepth);
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
      float left[16];
#pragma unroll
      for (int strip = 0; strip < 4; ++strip) {
        *reinterpret_cast<float4*>(left + 4 * strip) =
            *reinterpret_cast<const float4*>(&a[now][kk][y + strip * 16]);
      }
      const float4 right = *reinterpret_cast<const float4*>(&b[now][kk][x]);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        sum[i][0] += left[i] * right.x;
        sum[i][1] += left[i] * right.y;
        sum[i][2] += left[i] * right.z;
        sum[i][3] += left[i] * right.w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 16; ++i)
    sgemm_store4(p, row + y + i / 4 * 16 + i % 4, col + x, sum[i], aligned.d);
}

}  // namespace

void sgemm_warptile_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  sgemm_warptile_kernel<<<sgemm_blocks(p, kTile, kTile), kThreads, 0, cuda::stream_of(ctx)>>>(
      p, sgemm_alignment(p));
  SAT_CUDA_LAUNCHED("sgemm_warptile_kernel");
}

}  // namespace saturate::kernels
