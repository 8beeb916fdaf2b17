// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/philox.h"

namespace saturate::kernels {

// Dropout of one operation: the element's number decides, so forward and backward agree.
// Made once a thread, because it reads the counters from device memory. p == 0 leaves values alone
// and reads nothing (rng.state may be null).
struct Dropout {
  uint64_t seed = 0, micro_step = 0;
  uint32_t op = 0, threshold = 0;
  float scale = 1.0f;

  __device__ __forceinline__ Dropout(RngRef rng, float p) {
    if (p == 0.0f) return;
    seed = rng.state[0];
    micro_step = rng.state[1];
    op = rng.op;
    threshold = dropout_threshold(p);
    scale = 1.0f / (1.0f - p);
  }

  // v[i] belongs to element `first` + i. For N a multiple of 4 `first` must be one too: one draw
  // serves four elements. Otherwise each element draws for itself (the path for odd sizes).
  template <int N>
  __device__ __forceinline__ void apply(float (&v)[N], int64_t first) const {
    if (threshold == 0) return;
    if constexpr (N % 4 == 0) {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const Random4 r = random_block(seed, micro_step, op, static_cast<uint64_t>(first + i) / 4);
#pragma unroll
        for (int j = 0; j < 4; ++j) v[i + j] = r.x[j] >= threshold ? v[i + j] * scale : 0.0f;
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const auto element = static_cast<uint64_t>(first + i);
        const Random4 r = random_block(seed, micro_step, op, element / 4);
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
