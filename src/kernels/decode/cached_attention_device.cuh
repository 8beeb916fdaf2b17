// SPDX-License-Identifier: Apache-2.0
// What the kernels of cached_attention share.
#pragma once
#include <math_constants.h>

#include "kernels/decode/cached_attention.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"

namespace saturate::kernels::cached {

constexpr int kPerLane = 8;  // channels that a lane holds at most

// Where the history of one row lies (cached_attention.h).
struct History {
  const int32_t* table;  // of slots or pages; null: contiguous
  int64_t start;
  int page_size;  // 0: not paged

  __device__ History(const CachedAttentionArgs& a, int64_t row)
      : table(a.slots), start(0), page_size(0) {
    if (a.page_table == nullptr) {
      start = a.starts[row];
      if (table != nullptr) table += start;
      return;
    }
    page_size = static_cast<int>(a.page_size);
    table = a.page_table + row * a.page_table_stride;
  }
  __device__ int64_t slot(int j) const {
    if (page_size > 0) return int64_t{table[j / page_size]} * page_size + j % page_size;
    return table != nullptr ? table[j] : start + j;
  }
  __device__ int64_t new_slot(int last) const { return page_size > 0 ? slot(last) : start + last; }
};

// What one block knows of its share of the positions; `all` is the highest score among them.
struct Part {
  float all, denominator;
};

// Results of several blocks for one row and head: sums (rows, heads, count, head_size) that are not
// yet divided, and behind them (rows, heads, count) Parts.
struct Parts {
  float* sums;
  int count;

  __device__ int64_t item(const CachedAttentionArgs& a, int64_t row, int64_t head, int n) const {
    return (row * a.heads + head) * count + n;
  }
  __device__ float* sum(const CachedAttentionArgs& a, int64_t item) const {
    return sums + item * a.head_size;
  }
  __device__ Part& part(const CachedAttentionArgs& a, int64_t item) const {
    return reinterpret_cast<Part*>(sums + a.rows * a.heads * count * a.head_size)[item];
  }
};

// The lanes of this thread's group. Groups of one warp leave a loop over positions at different
// times, so each shuffles among its own lanes.
__device__ __forceinline__ uint32_t lanes_of_group(int group_lanes) {
  if (group_lanes == kWarp) return 0xFFFFFFFFu;
  return ((1u << group_lanes) - 1u) << (threadIdx.x % kWarp / group_lanes * group_lanes);
}

// Positions that all rows of this row's group share: 0 without groups.
__device__ __forceinline__ int shared_positions(const CachedAttentionArgs& a, int64_t row) {
  return a.shared_positions == nullptr ? 0 : a.shared_positions[row / a.group_rows];
}

// Rows that attend to nothing: their result is zero.
__device__ __forceinline__ bool is_idle(const CachedAttentionArgs& a, int64_t row) {
  return (a.finished != nullptr && a.finished[row] != 0) ||
         (a.lengths != nullptr && a.lengths[row] <= 0);
}

}  // namespace saturate::kernels::cached
