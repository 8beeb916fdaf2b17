// SPDX-License-Identifier: Apache-2.0
// One walk of a block over a row of logits, 16 bytes at a time.
#pragma once
#include "kernels/device/vector.cuh"

namespace saturate::kernels {

// With `kAhead` accesses under way in a thread. Calls see(value, index) once for each of z[0 .. vocab), which lies anywhere. Which thread sees a
// value depends on where the row lies: so only what comes out the same in any order (a maximum, a
// sum of integers) may be formed with it, or a row's result would depend on its place in the batch.
template <int kAhead, class T, class See>
__device__ __forceinline__ void each_value(const T* z, int vocab, const See& see) {
  constexpr int kWide = kWidth<T>;
  const auto past = static_cast<int>(reinterpret_cast<uintptr_t>(z) % 16 / sizeof(T));
  const int head = min(vocab, past == 0 ? 0 : kWide - past);
  const int packs = (vocab - head) / kWide, threads = static_cast<int>(blockDim.x);
  const int tail = head + packs * kWide;
  const auto thread = static_cast<int>(threadIdx.x);
  if (thread < head) see(to_float(z[thread]), thread);
  int p = thread;
  for (; p + (kAhead - 1) * threads < packs; p += kAhead * threads) {
    float v[kAhead][kWide];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) load(v[j], z + head + (p + j * threads) * kWide);
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
#pragma unroll
      for (int i = 0; i < kWide; ++i) see(v[j][i], head + (p + j * threads) * kWide + i);
    }
  }
  for (; p < packs; p += threads) {
    float v[kWide];
    load(v, z + head + p * kWide);
#pragma unroll
    for (int i = 0; i < kWide; ++i) see(v[i], head + p * kWide + i);
  }
  if (tail + thread < vocab) see(to_float(z[tail + thread]), tail + thread);
}

}  // namespace saturate::kernels
