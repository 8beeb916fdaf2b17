// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/fold_columns.h"

#include "kernels/device/reduce.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kSlices = 32;  // warps of a block; each sums every 32nd group of 32 columns

__global__ void __launch_bounds__(kWarp* kSlices) fold_columns_kernel(FoldColumnsArgs a) {
  float* out = a.out[blockIdx.y];
  if (out == nullptr) return;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  __shared__ float slices[kSlices][kWarp + 1];  // + 1: the fold below walks down columns
  float sum = 0.0f;
  if (c < a.cols) {
    const float* from = a.partial + blockIdx.y * a.cols + c;
#pragma unroll 8
    for (int64_t g = threadIdx.y; g < a.groups; g += kSlices) sum += from[g * a.outs * a.cols];
  }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all slices are written
  // Each warp folds one column: lane s takes slice s.
  const int64_t mine = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  const float total = warp_sum(slices[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < a.cols) out[mine] = a.accumulate[blockIdx.y] ? out[mine] + total : total;
}

}  // namespace

void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& a) {
  const dim3 grid(static_cast<unsigned>((a.cols + kWarp - 1) / kWarp),
                  static_cast<unsigned>(a.outs));
  fold_columns_kernel<<<grid, dim3(kWarp, kSlices), 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("fold_columns_kernel");
}

}  // namespace saturate::kernels
