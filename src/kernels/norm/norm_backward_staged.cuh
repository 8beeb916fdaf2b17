// SPDX-License-Identifier: Apache-2.0
// The backward pass of rows that a warp holds: up to 1024 columns.
#pragma once
#include "kernels/device/dropout.cuh"
#include "kernels/device/eight.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/norm/norm_impl.h"

namespace saturate::kernels {

// Warps of a block, each with a row at a time: of 16 bits by measurement (LADDER.md), of 32 as many as fit in 48 KB. kPacks: times 256 columns.
template <class T, int kPacks>
struct StagedBlock {
  static constexpr bool kWide = sizeof(T) == 4;  // whose shared memory is that of twice the rows
  static constexpr int kWarps = kWide && kPacks == 4 ? 2 : kWide || kPacks % 2 == 1 ? 4 : 8;
  static constexpr int kCols = kPacks * kEight * kWarp;
  static constexpr int kEach = norm_blocks_each(kCols, kWide);
  static constexpr int kPairs = kCols / 2 / (kWarps * kWarp);  // of columns, that a thread adds up
  static_assert(kCols == kPairs * 2 * kWarps * kWarp);
};

// Two neighbouring elements.
template <class T>
__device__ __forceinline__ float2 pair_at(const T* from) {
  float v[2];
  load(v, from);
  return {v[0], v[1]};
}

// With xhat = (sum - mean) rstd and g = d_y weight:
//   d_x = rstd (g - mean_c(g) - xhat mean_c(g xhat)) + d_sum,  d_weight += d_y xhat,  d_bias += d_y
// A block's warps have a row each. What the sums of columns are made of goes to shared memory as it came or as it is
// stored, and then each thread adds its own columns over the block's rows: column sums kept by every lane for its own
// row would be 8 kPacks registers each, and a warp after the other to add them at the end. partial (groups, kSums, cols)
// goes to fold_columns.
template <class T, int kPacks, int kSums>
__global__ void __launch_bounds__(StagedBlock<T, kPacks>::kWarps* kWarp,
                                  StagedBlock<T, kPacks>::kEach)
    norm_backward_staged_kernel(NormBackwardArgs a) {
  using B = StagedBlock<T, kPacks>;
  constexpr int kRows = B::kWarps;
  __shared__ __align__(16) T staged[kSums][kRows][B::kCols];  // d_y, sum, d_branch
  __shared__ float means[kRows], rstds[kRows];
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  const int cols = static_cast<int>(a.cols);
  const float inverse = 1.0f / static_cast<float>(cols);
  const bool centred = a.kind == NormKind::layer_norm;
  const Dropout drop(a.rng, a.d_branch != nullptr ? a.dropout : 0.0f);

  float column[B::kPairs][kSums][2] = {};
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRows;
  for (int64_t r0 = first; r0 < a.rows; r0 += static_cast<int64_t>(gridDim.x) * kRows) {
    // All loads of the row, and its two sums. Rows and columns beyond the end are zeros.
    const int64_t r = r0 + warp;
    const bool inside = r < a.rows;
    const float rstd = inside ? static_cast<const float*>(a.rstd)[r] : 0.0f;
    const float mean = inside && centred ? static_cast<const float*>(a.mean)[r] : 0.0f;
    Eight<T> d_y[kPacks], sum[kPacks], d_sum[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * kWarp + lane) * kEight;
      const int64_t at = r * a.cols + c;
      d_y[p].clear(), sum[p].clear(), d_sum[p].clear();
      if (c >= cols || !inside) continue;
      d_y[p].read(static_cast<const T*>(a.d_y) + at);
      sum[p].read(static_cast<const T*>(a.sum) + at);
      if (a.d_sum != nullptr) d_sum[p].read(static_cast<const T*>(a.d_sum) + at);
    }
    if (r0 != first) __syncthreads();  // the rows before have been added
    if (lane == 0) means[warp] = mean, rstds[warp] = rstd;
    float sums[2] = {};
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * kWarp + lane) * kEight;
      d_y[p].write(&staged[0][warp][c]);
      sum[p].write(&staged[1][warp][c]);
      if (c >= cols) continue;
      float weight[kEight];
      load(weight, static_cast<const float*>(a.weight) + c);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float g = d_y[p].at(i) * weight[i];
        sums[0] += g * ((sum[p].at(i) - mean) * rstd);
        sums[1] += g;
      }
    }
    team_sum<Team::warp>(sums, nullptr);

    // The gradients of x and of the branch.
    const float along = sums[0] * inverse, level = centred ? sums[1] * inverse : 0.0f;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const int c = (p * kWarp + lane) * kEight;
      float d_x[kEight] = {};
      if (c < cols && inside) {
        float weight[kEight];
        load(weight, static_cast<const float*>(a.weight) + c);
#pragma unroll
        for (int i = 0; i < kEight; ++i) {
          const float x = (sum[p].at(i) - mean) * rstd;
          d_x[i] = rstd * (d_y[p].at(i) * weight[i] - level - x * along) + d_sum[p].at(i);
        }
        store(static_cast<T*>(a.d_x) + r * a.cols + c, d_x);
        if (a.d_branch != nullptr) {
          drop.apply(d_x, drop.row(r) + c);
          store(static_cast<T*>(a.d_branch) + r * a.cols + c, d_x);
        }
      }
      if constexpr (kSums == 3) store(&staged[2][warp][c], d_x);
    }
    if (!sums_columns(a)) continue;
    __syncthreads();  // all rows are there
#pragma unroll
    for (int q = 0; q < B::kPairs; ++q) {
      const int c = (q * B::kWarps * kWarp + static_cast<int>(threadIdx.x)) * 2;
      if (c >= cols) break;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        const float2 d = pair_at(&staged[0][row][c]), s = pair_at(&staged[1][row][c]);
        column[q][0][0] += d.x * ((s.x - means[row]) * rstds[row]);
        column[q][0][1] += d.y * ((s.y - means[row]) * rstds[row]);
        column[q][1][0] += d.x;
        column[q][1][1] += d.y;
        if constexpr (kSums == 3) {
          const float2 b = pair_at(&staged[2][row][c]);
          column[q][2][0] += b.x;
          column[q][2][1] += b.y;
        }
      }
    }
  }
  if (!sums_columns(a)) return;
  float* const partial =
      static_cast<float*>(a.partial) + static_cast<int64_t>(blockIdx.x) * kSums * a.cols;
#pragma unroll
  for (int q = 0; q < B::kPairs; ++q) {
    const int c = (q * B::kWarps * kWarp + static_cast<int>(threadIdx.x)) * 2;
    if (c >= cols) break;
#pragma unroll
    for (int o = 0; o < kSums; ++o) store(partial + o * a.cols + c, column[q][o]);
  }
}

}  // namespace saturate::kernels
