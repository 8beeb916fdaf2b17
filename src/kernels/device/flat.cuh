// SPDX-License-Identifier: Apache-2.0
// Kernels over a flat array: 8 elements a thread, and one a thread for what is left or not aligned.
#pragma once
#include "kernels/device/early_launch.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

constexpr int kFlatThreads = 256;
constexpr int kFlatWidth = 8;

// Body::at<N>(first) does elements first .. first + N - 1; for N = 8 `first` is a multiple of 8.
template <class Body>
__global__ void __launch_bounds__(kFlatThreads)
    flat_kernel(int64_t packs, int64_t count, Body body) {
  change_over();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFlatThreads + threadIdx.x;
  if (i < packs) {
    body.template at<kFlatWidth>(i * kFlatWidth);
  } else if (i - packs < count - packs * kFlatWidth) {
    body.template at<1>(packs * kFlatWidth + (i - packs));
  }
}

// `wide`: every group of 8 elements may be moved in 16-byte accesses. count > 0.
template <class Body>
void launch_flat(const Context& ctx, const char* name, int64_t count, bool wide, const Body& body) {
  const int64_t packs = wide ? count / kFlatWidth : 0;
  const int64_t threads = packs + (count - packs * kFlatWidth);
  const auto blocks = static_cast<unsigned>((threads + kFlatThreads - 1) / kFlatThreads);
  SAT_CUDA(launch_kernel(starts_early(ctx, blocks), flat_kernel<Body>, dim3(blocks),
                         dim3(kFlatThreads), 0, cuda::stream_of(ctx), packs, count, body));
  SAT_CUDA_LAUNCHED(name);
}

}  // namespace saturate::kernels
