// SPDX-License-Identifier: Apache-2.0
// How a consumer of the Hopper backward kernel brings its 64 rows of d_k and d_v to memory: through
// shared memory and TMA, which writes them while the next unit begins. Stores straight from the
// registers held each consumer up for 4,600 clocks a unit (LADDER.md).
#pragma once
#include "kernels/attention/hopper/backward_device.cuh"

namespace saturate::kernels::attention::hopper {

// 64 rows by kCols of a warpgroup's sums, times `factor`, to panels of 64 columns, `panel` bytes
// apart, rows of 128 bytes swizzled over 128 bytes. `to` is aligned to 1024.
template <class T, int kCols>
__device__ __forceinline__ void stage_rows(uint32_t to, uint32_t panel,
                                           const float (&sum)[kCols / 2], float factor) {
  const uint32_t thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      v[i] = wgmma::pack<T>(sum[8 * c + 2 * i] * factor, sum[8 * c + 2 * i + 1] * factor);
    const uint32_t chunk = (c % 4 * 2 + lane / 16) ^ (row % 8);
    store_matrices(to + c / 4 * panel + row * 128 + chunk * 16, v[0], v[1], v[2], v[3]);
  }
}

}  // namespace saturate::kernels::attention::hopper
