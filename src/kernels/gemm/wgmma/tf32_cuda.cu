// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/promoted_kernel.cuh"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {
namespace {

using Tf32Product = Promoted<Tf32, Tf32, float, float, false>;

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

cudaError_t launch_tf32(const PromotedProblem& p, int blocks, cudaStream_t stream) {
  return launch_pairs<matmul_promoted_kernel<Tf32Product>, Tf32Product::kSharedBytes>(p, blocks,
                                                                                      stream);
}

void transpose_f32(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to,
                   int64_t ld_to, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((rows + 31) / 32),
                  static_cast<unsigned>((columns + 63) / 64));
  transpose_f32_kernel<<<grid, 256, 0, stream>>>(from, ld, rows, columns, to, ld_to);
}

}  // namespace saturate::kernels::wgmma
