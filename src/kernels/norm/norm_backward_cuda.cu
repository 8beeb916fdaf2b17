// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/device/dropout.cuh"
#include "kernels/device/fold_columns.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/norm/norm_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kVec = 8;
constexpr int kWarpsPerBlock = 8;   // where a warp owns a row
constexpr int kBlockThreads = 512;  // at most, where the block owns a row

// With xhat = (sum - mean) rstd and g = d_y weight:
//   d_x = rstd (g - mean_c(g) - xhat mean_c(g xhat)) + d_sum,  d_weight += d_y xhat,  d_bias += d_y
// A team (a warp or the block) walks rows, kRows at a time, and keeps its columns' d_weight and
// d_bias in registers; a block's teams are added in order, and partial (groups, 2, cols) goes to
// fold_columns.
template <class T, Team kTeam, int kPacks, int kRows>
__global__ void __launch_bounds__(kTeam == Team::warp ? kWarpsPerBlock * kWarp : kBlockThreads)
    norm_backward_kernel(NormBackwardArgs a) {
  constexpr int kTeams = kTeam == Team::warp ? kWarpsPerBlock : 1;
  constexpr int kSharedFloats = kTeam == Team::warp ? 2 * kPacks * kVec * kWarp : 2 * kRows * kWarp;
  __shared__ float shared[kSharedFloats];
  const int size = kTeam == Team::warp ? kWarp : static_cast<int>(blockDim.x);
  const int member = kTeam == Team::warp ? threadIdx.x % kWarp : threadIdx.x;
  const int team = kTeam == Team::warp ? threadIdx.x / kWarp : 0;
  const int cols = static_cast<int>(a.cols);
  const float inverse = 1.0f / static_cast<float>(cols);
  const bool centred = a.kind == NormKind::layer_norm;
  const Dropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);

  float d_weight[kPacks][kVec] = {}, d_bias[kPacks][kVec] = {};
  const int64_t step = static_cast<int64_t>(gridDim.x) * kTeams * kRows;
  for (int64_t r0 = (static_cast<int64_t>(blockIdx.x) * kTeams + team) * kRows; r0 < a.rows;
       r0 += step) {
    // Stage 1: all loads of these rows, and the two sums of each.
    float d_y[kRows][kPacks][kVec], xhat[kRows][kPacks][kVec], d_sum[kRows][kPacks][kVec];
    float mean[kRows], rstd[kRows], sums[2 * kRows];
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t r = r0 + k;
      const bool inside = r < a.rows;
      rstd[k] = inside ? static_cast<const float*>(a.rstd)[r] : 0.0f;
      mean[k] = inside && centred ? static_cast<const float*>(a.mean)[r] : 0.0f;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int c = (p * size + member) * kVec;
#pragma unroll
        for (int i = 0; i < kVec; ++i) d_y[k][p][i] = xhat[k][p][i] = d_sum[k][p][i] = 0.0f;
        if (c >= cols || !inside) continue;
        load(d_y[k][p], static_cast<const T*>(a.d_y) + r * a.cols + c);
        load(xhat[k][p], static_cast<const T*>(a.sum) + r * a.cols + c);
        if (a.d_sum != nullptr) load(d_sum[k][p], static_cast<const T*>(a.d_sum) + r * a.cols + c);
      }
    }
#pragma unroll
    for (int k = 0; k < kRows; ++k) sums[2 * k] = sums[2 * k + 1] = 0.0f;
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
          const float d = d_y[k][p][i], x = (xhat[k][p][i] - mean[k]) * rstd[k];
          xhat[k][p][i] = x;
          d_weight[p][i] += d * x;
          d_bias[p][i] += d;
          d_y[k][p][i] = d * weight[i];
          sums[2 * k] += d * weight[i] * x;
          sums[2 * k + 1] += d * weight[i];
        }
      }
    }
    team_sum<kTeam>(sums, shared);

    // Stage 2: the gradients of x and of the branch.
#pragma unroll
    for (int k = 0; k < kRows; ++k) {
      const int64_t row = (r0 + k) * a.cols;
      const float along = sums[2 * k] * inverse, level = centred ? sums[2 * k + 1] * inverse : 0.0f;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        const int c = (p * size + member) * kVec;
        if (c >= cols || r0 + k >= a.rows) continue;
        float d_x[kVec];
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          d_x[i] = rstd[k] * (d_y[k][p][i] - level - xhat[k][p][i] * along) + d_sum[k][p][i];
        }
        store(static_cast<T*>(a.d_x) + row + c, d_x);
        if (a.d_branch == nullptr) continue;
        drop.apply(d_x, drop.row(r0 + k) + c);
        store(static_cast<T*>(a.d_branch) + row + c, d_x);
      }
    }
  }

  // Stage 3: this block's column sums.
  if (a.d_weight == nullptr && a.d_bias == nullptr) return;
  float* partial = static_cast<float*>(a.partial) + static_cast<int64_t>(blockIdx.x) * 2 * a.cols;
  if constexpr (kTeam == Team::block) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * size + member) * kVec;
      if (c >= cols) continue;
      store(partial + c, d_weight[p]);
      store(partial + a.cols + c, d_bias[p]);
    }
  } else {
    constexpr int kHalf = kPacks * kVec * kWarp;
    for (int t = 0; t < kTeams; ++t) {
      if (team == t) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
#pragma unroll
          for (int i = 0; i < kVec; ++i) {
            const int at =
                (p * kVec + i) * kWarp + member;  // a warp's lanes side by side: no conflict
            shared[at] = t == 0 ? d_weight[p][i] : shared[at] + d_weight[p][i];
            shared[kHalf + at] = t == 0 ? d_bias[p][i] : shared[kHalf + at] + d_bias[p][i];
          }
        }
      }
      __syncthreads();  // team t has added before team t + 1 does, and all before the copy below
    }
    for (int c = threadIdx.x; c < cols; c += kTeams * kWarp) {
      const int pack = c / kVec, at = (pack / kWarp * kVec + c % kVec) * kWarp + pack % kWarp;
      partial[c] = shared[at];
      partial[a.cols + c] = shared[kHalf + at];
    }
  }
}

// Any number of columns and any alignment. The block adds to its partial sums in memory; each
// column belongs to one thread.
template <class T>
__global__ void __launch_bounds__(256) norm_backward_any_kernel(NormBackwardArgs a) {
  __shared__ float shared[2 * kWarp];
  const bool centred = a.kind == NormKind::layer_norm;
  const bool columns = a.d_weight != nullptr || a.d_bias != nullptr;
  const float* weight = static_cast<const float*>(a.weight);
  const Dropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);
  float* partial = static_cast<float*>(a.partial) + static_cast<int64_t>(blockIdx.x) * 2 * a.cols;
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
      if (a.d_branch == nullptr) continue;
      drop.apply(d_x, drop.row(r) + c);
      store(static_cast<T*>(a.d_branch) + r * a.cols + c, d_x);
    }
  }
}

// Each launcher returns the number of groups in partial.
template <class T, Team kTeam, int kPacks, int kRows>
int64_t launch(const Context& ctx, const NormBackwardArgs& a) {
  const int64_t per_block = (kTeam == Team::warp ? kWarpsPerBlock : 1) * kRows;
  const int64_t groups = std::min(kNormCudaGroups, (a.rows + per_block - 1) / per_block);
  const int64_t packs = (a.cols / kVec + kPacks - 1) / kPacks;
  const int64_t threads =
      kTeam == Team::warp ? kWarpsPerBlock * kWarp : (packs + kWarp - 1) / kWarp * kWarp;
  norm_backward_kernel<T, kTeam, kPacks, kRows>
      <<<static_cast<unsigned>(groups), static_cast<unsigned>(threads), 0, cuda::stream_of(ctx)>>>(
          a);
  SAT_CUDA_LAUNCHED("norm_backward_kernel");
  return groups;
}

template <class T>
int64_t launch_any(const Context& ctx, const NormBackwardArgs& a) {
  const int64_t groups = std::min(kNormCudaGroups, a.rows);
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
  if (a.cols <= kWarpCols) return launch<T, Team::warp, 1, 2>(ctx, a);
  if (a.cols <= 2 * kWarpCols) return launch<T, Team::warp, 2, 1>(ctx, a);
  if (a.cols <= 4 * kWarpCols) return launch<T, Team::warp, 4, 1>(ctx, a);
  if (a.cols <= kBlockCols) return launch<T, Team::block, 1, 2>(ctx, a);
  return launch<T, Team::block, 2, 1>(ctx, a);
}

}  // namespace

void norm_backward_cuda(const Context& ctx, const NormBackwardArgs& a) {
  int64_t groups = 0;
  if (a.rows > 0) {
    with_device_type(a.dtype,
                     [&](auto tag) { groups = launch_rows<typename decltype(tag)::type>(ctx, a); });
  }
  if (a.d_weight == nullptr && a.d_bias == nullptr) return;
  fold_columns_cuda(ctx, {.partial = static_cast<const float*>(a.partial),
                          .groups = groups,
                          .outs = 2,
                          .cols = a.cols,
                          .out = {static_cast<float*>(a.d_weight), static_cast<float*>(a.d_bias)},
                          .accumulate = a.accumulate});
}

}  // namespace saturate::kernels
