// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// Dropout of one operation: the element's number decides, so forward and backward agree.
// Made once a thread, because it reads the counters from device memory. p == 0 leaves values alone
// and reads nothing (rng.state may be null). `rng` is as whole_matrix() returns it.
struct Dropout {
  uint64_t seed = 0, micro_batch = 0;
  uint32_t site = 0, threshold = 0;
  float scale = 1.0f;
  int64_t first = 0, columns = 0;

  __device__ __forceinline__ Dropout(const RngRef& rng, float p) {
    if (p == 0.0f) return;
    seed = rng.state[0];
    micro_batch = rng.state[1];
    site = rng.site;
    threshold = dropout_threshold(p);
    scale = 1.0f / (1.0f - p);
    first = rng.first();
    columns = rng.columns;
  }

  // Number of column 0 of row r.
  __device__ __forceinline__ int64_t row(int64_t r) const { return first + r * columns; }
  // Number of element i of a dense matrix of `cols` columns and fewer than 2^32 elements.
  __device__ __forceinline__ int64_t flat(int64_t i, int64_t cols) const {
    if (columns == cols) return first + i;
    const uint32_t r = static_cast<uint32_t>(i) / static_cast<uint32_t>(cols);
    return row(r) + (i - r * cols);
  }

  // v[i] belongs to element `number` + i. For N a multiple of 4 `number` must be one too (rng's
  // draws_in_fours): one draw serves four elements. Otherwise each element draws for itself.
  template <int N>
  __device__ __forceinline__ void apply(float (&v)[N], int64_t number) const {
    if (threshold == 0) return;
    if constexpr (N % 4 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const Random4 r =
            random_block(seed, micro_batch, site, static_cast<uint64_t>(number + i) / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i + j] = r.x[j] >= threshold ? v[i + j] * scale : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto element = static_cast<uint64_t>(number + i);
        const Random4 r = random_block(seed, micro_batch, site, element / 4);
        const uint32_t word = element % 4 == 0   ? r.x[0]
                              : element % 4 == 1 ? r.x[1]
                              : element % 4 == 2 ? r.x[2]
                                                 : r.x[3];
        v[i] = word >= threshold ? v[i] * scale : 0.0f;
      }
    }
  }
};

}  // namespace saturate::kernels
