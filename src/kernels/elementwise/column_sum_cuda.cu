// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/device/fold_columns.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/elementwise/elementwise_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kWarps = 8;

// First stage: block (x, y) sums the columns of tile x over the rows of group y into partial[y].
// Warp w takes every 8th row; the warps' sums are added in order of w.
template <class T, int kVec>
__global__ void __launch_bounds__(kWarps* kWarp) column_sum_kernel(ColumnSumArgs a) {
  constexpr int kTile = kVec * kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kTile + lane * kVec;
  const int64_t group = blockIdx.y, groups = gridDim.y;
  const int64_t end = a.rows * (group + 1) / groups;
  float sum[kVec] = {};
  if (c < a.cols) {
    const T* x = static_cast<const T*>(a.x) + c;
#pragma unroll 8
    for (int64_t r = a.rows * group / groups + warp; r < end; r += kWarps) {
      float v[kVec];
      load(v, x + r * a.ld);
#pragma unroll
      for (int i = 0; i < kVec; ++i) sum[i] += v[i];
    }
  }
  __shared__ float sums[kWarps][kTile];
#pragma unroll
  for (int i = 0; i < kVec; ++i)
    sums[warp][i * kWarp + lane] = sum[i];  // transposed: no bank conflict
  __syncthreads();                          // all warps' sums are written
  for (int k = threadIdx.x; k < kTile; k += kWarps * kWarp) {
    const int64_t column = static_cast<int64_t>(blockIdx.x) * kTile + k;
    float total = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += sums[w][k % kVec * kWarp + k / kVec];
    if (column < a.cols) static_cast<float*>(a.partial)[group * a.cols + column] = total;
  }
}

template <class T, int kVec>
void launch(const Context& ctx, const ColumnSumArgs& a, int64_t groups) {
  constexpr int64_t kTile = int64_t{kVec} * kWarp;
  const dim3 grid(static_cast<unsigned>((a.cols + kTile - 1) / kTile),
                  static_cast<unsigned>(groups));
  column_sum_kernel<T, kVec><<<grid, kWarps * kWarp, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("column_sum_kernel");
}

}  // namespace

void column_sum_cuda(const Context& ctx, const ColumnSumArgs& a) {
  // At least 8 rows a warp, and partial sums small beside x.
  const int64_t groups = std::min(kColumnSumCudaGroups, (a.rows + 63) / 64);
  if (groups > 0) {
    with_device_type(a.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const bool wide = aligned16(a.x) && a.cols % 8 == 0 && a.ld % 8 == 0;
      wide ? launch<T, 8>(ctx, a, groups) : launch<T, 1>(ctx, a, groups);
    });
  }
  fold_columns_cuda(ctx,
                    {.partial = static_cast<const float*>(a.partial),
                     .groups = groups,
                     .outs = 1,
                     .cols = a.cols,
                     .out = {static_cast<float*>(a.out)},
                     .accumulate = {a.accumulate}},
                    a.later);
}

}  // namespace saturate::kernels
