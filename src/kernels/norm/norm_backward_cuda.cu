// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/device/dropout.cuh"
#include "kernels/device/eight.cuh"
#include "kernels/device/fold_columns.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/norm/norm_backward_staged.cuh"
#include "kernels/norm/norm_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kVec = kEight;
constexpr int kBlockThreads = 512;  // at most, where the block owns a row

// As norm_backward_staged_kernel, of rows that a block holds: it walks them, kRows at a time, and keeps its columns' sums
// in registers.
template <class T, int kPacks, int kRows, int kSums>
__global__ void __launch_bounds__(kBlockThreads, 1) norm_backward_block_kernel(NormBackwardArgs a) {
  __shared__ float shared[2 * kRows * kWarp];
  const int size = static_cast<int>(blockDim.x), member = static_cast<int>(threadIdx.x);
  const int cols = static_cast<int>(a.cols);
  const float inverse = 1.0f / static_cast<float>(cols);
  const bool centred = a.kind == NormKind::layer_norm;
  const Dropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);

  float column[kSums][kPacks][kVec] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kRows;
  for (int64_t r0 = static_cast<int64_t>(blockIdx.x) * kRows; r0 < a.rows; r0 += step) {
    // Stage 1: all loads of these rows, and the two sums of each.
    Eight<T> d_y[kRows][kPacks], sum[kRows][kPacks], d_sum[kRows][kPacks];
    float mean[kRows], rstd[kRows], sums[2 * kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t r = r0 + k;
      const bool inside = r < a.rows;
      rstd[k] = inside ? static_cast<const float*>(a.rstd)[r] : 0.0f;
      mean[k] = inside && centred ? static_cast<const float*>(a.mean)[r] : 0.0f;
      sums[2 * k] = sums[2 * k + 1] = 0.0f;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int c = (p * size + member) * kVec;
        const int64_t at = r * a.cols + c;
        d_y[k][p].clear(), sum[k][p].clear(), d_sum[k][p].clear();
        if (c >= cols || !inside) continue;
        d_y[k][p].read(static_cast<const T*>(a.d_y) + at);
        sum[k][p].read(static_cast<const T*>(a.sum) + at);
        if (a.d_sum != nullptr) d_sum[k][p].read(static_cast<const T*>(a.d_sum) + at);
      }
    }
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * size + member) * kVec;
      if (c >= cols) continue;
      float weight[kVec];
      load(weight, static_cast<const float*>(a.weight) + c);
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float d = d_y[k][p].at(i), x = (sum[k][p].at(i) - mean[k]) * rstd[k];
          column[0][p][i] += d * x;
          column[1][p][i] += d;
          sums[2 * k] += d * weight[i] * x;
          sums[2 * k + 1] += d * weight[i];
        }
      }
    }
    team_sum<Team::block>(sums, shared);

    // Stage 2: the gradients of x and of the branch.
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * size + member) * kVec;
      if (c >= cols) continue;
      float weight[kVec];
      load(weight, static_cast<const float*>(a.weight) + c);
#pragma unroll
      for (int k = 0; k < kRows; ++k) {
        if (r0 + k >= a.rows) continue;
        const int64_t row = (r0 + k) * a.cols;
        const float along = sums[2 * k] * inverse;
        const float level = centred ? sums[2 * k + 1] * inverse : 0.0f;
        float d_x[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          const float x = (sum[k][p].at(i) - mean[k]) * rstd[k];
          d_x[i] = rstd[k] * (d_y[k][p].at(i) * weight[i] - level - x * along) + d_sum[k][p].at(i);
        }
        store(static_cast<T*>(a.d_x) + row + c, d_x);
        if (a.d_branch != nullptr) {
          drop.apply(d_x, drop.row(r0 + k) + c);
          store(static_cast<T*>(a.d_branch) + row + c, d_x);
        }
        if constexpr (kSums == 3) {
#pragma unroll
          for (int i = 0; i < kVec; ++i) column[2][p][i] += round_to<T>(d_x[i]);
        }
      }
    }
  }

  // Stage 3: this block's column sums.
  if (!sums_columns(a)) return;
  float* partial =
      static_cast<float*>(a.partial) + static_cast<int64_t>(blockIdx.x) * kSums * a.cols;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int c = (p * size + member) * kVec;
    if (c >= cols) continue;
#pragma unroll
    for (int o = 0; o < kSums; ++o) store(partial + o * a.cols + c, column[o][p]);
  }
}

// Any number of columns and any alignment. The block adds to its partial sums in memory; each
// column belongs to one thread.
template <class T>
__global__ void __launch_bounds__(256) norm_backward_any_kernel(NormBackwardArgs a) {
  __shared__ float shared[2 * kWarp];
  const bool centred = a.kind == NormKind::layer_norm;
  const bool columns = sums_columns(a);
  const int outs = a.d_branch_sum != nullptr ? 3 : 2;
  const float* weight = static_cast<const float*>(a.weight);
  const Dropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);
  float* partial =
      static_cast<float*>(a.partial) + static_cast<int64_t>(blockIdx.x) * outs * a.cols;
  for (int64_t r = blockIdx.x; r < a.rows; r += gridDim.x) {
    const T* d_y = static_cast<const T*>(a.d_y) + r * a.cols;
    const T* s = static_cast<const T*>(a.sum) + r * a.cols;
    const float rstd = static_cast<const float*>(a.rstd)[r];
    const float mean = centred ? static_cast<const float*>(a.mean)[r] : 0.0f;
    float sums[2] = {};
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
      const float d = to_float(d_y[c]), x = (to_float(s[c]) - mean) * rstd;
      sums[0] += d * weight[c] * x;
      sums[1] += d * weight[c];
      if (!columns) continue;
      const bool first = r == blockIdx.x;
      partial[c] = (first ? 0.0f : partial[c]) + d * x;
      partial[a.cols + c] = (first ? 0.0f : partial[a.cols + c]) + d;
    }
    team_sum<Team::block>(sums, shared);
    const float along = sums[0] / static_cast<float>(a.cols);
    const float level = centred ? sums[1] / static_cast<float>(a.cols) : 0.0f;
    for (int64_t c = threadIdx.x; c < a.cols; c += blockDim.x) {
      const float x = (to_float(s[c]) - mean) * rstd;
      float d_x[1] = {rstd * (to_float(d_y[c]) * weight[c] - level - x * along)};
      if (a.d_sum != nullptr) d_x[0] += to_float(static_cast<const T*>(a.d_sum)[r * a.cols + c]);
      store(static_cast<T*>(a.d_x) + r * a.cols + c, d_x);
      if (a.d_branch != nullptr) {
        drop.apply(d_x, drop.row(r) + c);
        store(static_cast<T*>(a.d_branch) + r * a.cols + c, d_x);
      }
      if (outs < 3) continue;
      float& total = partial[2 * a.cols + c];
      total = (r == blockIdx.x ? 0.0f : total) + round_to<T>(d_x[0]);
    }
  }
}

// Each launcher returns the number of groups in partial.
template <class T, int kPacks>
int64_t launch_staged(const Context& ctx, const NormBackwardArgs& a) {
  using B = StagedBlock<T, kPacks>;
  const int64_t groups =
      std::min<int64_t>(kNormCudaBlocks * B::kEach, (a.rows + B::kWarps - 1) / B::kWarps);
  const auto kernel = a.d_branch_sum != nullptr ? norm_backward_staged_kernel<T, kPacks, 3>
                                                : norm_backward_staged_kernel<T, kPacks, 2>;
  kernel<<<static_cast<unsigned>(groups), B::kWarps * kWarp, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("norm_backward_staged_kernel");
  return groups;
}

template <class T, int kPacks, int kRows>
int64_t launch_block(const Context& ctx, const NormBackwardArgs& a) {
  const int64_t groups = std::min<int64_t>(
      kNormCudaBlocks * norm_blocks_each(a.cols, sizeof(T) == 4), (a.rows + kRows - 1) / kRows);
  const int64_t packs = (a.cols / kVec + kPacks - 1) / kPacks;
  const int64_t threads = (packs + kWarp - 1) / kWarp * kWarp;
  const auto kernel = a.d_branch_sum != nullptr ? norm_backward_block_kernel<T, kPacks, kRows, 3>
                                                : norm_backward_block_kernel<T, kPacks, kRows, 2>;
  kernel<<<static_cast<unsigned>(groups), static_cast<unsigned>(threads), 0,
           cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("norm_backward_block_kernel");
  return groups;
}

template <class T>
int64_t launch_any(const Context& ctx, const NormBackwardArgs& a) {
  const int64_t groups =
      std::min(kNormCudaBlocks * norm_blocks_each(a.cols, sizeof(T) == 4), a.rows);
  norm_backward_any_kernel<T><<<static_cast<unsigned>(groups), 256, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("norm_backward_any_kernel");
  return groups;
}

template <class T>
int64_t launch_rows(const Context& ctx, const NormBackwardArgs& a) {
  constexpr int64_t kWarpCols = kWarp * kVec, kBlockCols = kBlockThreads * kVec;
  const bool wide = a.cols % kVec == 0 && a.rng.draws_in_fours(a.cols) &&
                    aligned16(a.d_y, a.d_sum, a.sum, a.weight, a.d_x, a.d_branch, a.partial);
  if (!wide || a.cols > 2 * kBlockCols) return launch_any<T>(ctx, a);
  if (a.cols <= kWarpCols) return launch_staged<T, 1>(ctx, a);
  if (a.cols <= 2 * kWarpCols) return launch_staged<T, 2>(ctx, a);
  if (a.cols <= 3 * kWarpCols) return launch_staged<T, 3>(ctx, a);
  if (a.cols <= 4 * kWarpCols) return launch_staged<T, 4>(ctx, a);
  if (a.cols <= kBlockCols) return launch_block<T, 1, 2>(ctx, a);
  return launch_block<T, 2, 1>(ctx, a);
}

}  // namespace

void norm_backward_cuda(const Context& ctx, const NormBackwardArgs& a) {
  int64_t groups = 0;
  if (a.rows > 0) {
    with_device_type(a.dtype,
                     [&](auto tag) { groups = launch_rows<typename decltype(tag)::type>(ctx, a); });
  }
  if (!sums_columns(a)) return;
  fold_columns_cuda(ctx,
                    {.partial = static_cast<const float*>(a.partial),
                     .groups = groups,
                     .outs = a.d_branch_sum != nullptr ? 3 : 2,
                     .cols = a.cols,
                     .out = {static_cast<float*>(a.d_weight), static_cast<float*>(a.d_bias),
                             static_cast<float*>(a.d_branch_sum)},
                     .accumulate = {a.accumulate, a.accumulate, a.accumulate_branch_sum}},
                    a.later);
}

}  // namespace saturate::kernels
