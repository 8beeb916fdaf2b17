// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/fold_columns.h"

#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kSlices = 32;  // warps of a block; each sums every 32nd group of 32 columns

// Block `tile` of the columns of out number `o`.
__device__ __forceinline__ void fold(const FoldColumnsArgs& a, int64_t tile, int64_t o) {
  float* out = a.out[o];
  if (out == nullptr) return;
  const int64_t c = tile * kWarp + threadIdx.x;
  __shared__ float slices[kSlices][kWarp + 1];  // + 1: the fold below walks down columns
  float sum = 0.0f;
  if (c < a.cols) {
    const float* from = a.partial + o * a.cols + c;
#pragma unroll 8
    for (int64_t g = threadIdx.y; g < a.groups; g += kSlices) sum += from[g * a.outs * a.cols];
  }
  slices[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all slices are written
  // Each warp folds one column: lane s takes slice s.
  const int64_t mine = tile * kWarp + threadIdx.y;
  const float total = warp_sum(slices[threadIdx.x][threadIdx.y]);
  if (threadIdx.x == 0 && mine < a.cols) out[mine] = a.accumulate[o] ? out[mine] + total : total;
}

__global__ void __launch_bounds__(kWarp* kSlices) fold_columns_kernel(FoldColumnsArgs a) {
  fold(a, blockIdx.x, blockIdx.y);
}

constexpr int kMostJobs = 256;  // 20 of the 32 KiB that a kernel's arguments may have
struct Jobs {
  FoldColumnsArgs job[kMostJobs];
  int first[kMostJobs + 1];  // block, of each job; behind the last all of them
  int count;
};

__global__ void __launch_bounds__(kWarp* kSlices)
    fold_list_kernel(const __grid_constant__ Jobs jobs) {
  const int block = static_cast<int>(blockIdx.x);
  int low = 0, high = jobs.count;  // the job lies in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (jobs.first[middle] <= block ? low : high) = middle;
  }
  const FoldColumnsArgs& a = jobs.job[low];
  const int at = block - jobs.first[low], outs = static_cast<int>(a.outs);
  fold(a, at / outs, at % outs);
}

unsigned tiles_of(const FoldColumnsArgs& a) {
  return static_cast<unsigned>((a.cols + kWarp - 1) / kWarp);
}

}  // namespace

void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& a) {
  const dim3 grid(tiles_of(a), static_cast<unsigned>(a.outs));
  fold_columns_kernel<<<grid, dim3(kWarp, kSlices), 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("fold_columns_kernel");
}

void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& a, FoldList* later) {
  if (later == nullptr) return fold_columns_cuda(ctx, a);
  later->jobs.push_back(a);
}

void fold_columns_cuda(const Context& ctx, FoldList& list) {
  for (size_t at = 0; at < list.jobs.size(); at += kMostJobs) {
    Jobs jobs{};
    jobs.count = static_cast<int>(std::min<size_t>(kMostJobs, list.jobs.size() - at));
    for (int i = 0; i < jobs.count; ++i) {
      const FoldColumnsArgs& a = jobs.job[i] = list.jobs[at + static_cast<size_t>(i)];
      jobs.first[i + 1] = jobs.first[i] + static_cast<int>(tiles_of(a) * a.outs);
    }
    const int blocks = jobs.first[jobs.count];
    if (blocks == 0) continue;
    fold_list_kernel<<<static_cast<unsigned>(blocks), dim3(kWarp, kSlices), 0,
                       cuda::stream_of(ctx)>>>(jobs);
    SAT_CUDA_LAUNCHED("fold_list_kernel");
  }
  list.jobs.clear();
}

}  // namespace saturate::kernels
