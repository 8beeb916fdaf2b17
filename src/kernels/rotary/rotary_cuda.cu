// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/device/early_launch.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/rotary/rotary_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 128;

// One thread owns kVec channel pairs of one row and walks its heads, or of gridDim.y parts of them
// one, so that powers, sines and cosines are paid once a row, or once a part. powf errs by up to 4 ulp: angles by position * 2^-21.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads) rotary_kernel(RotaryArgs a) {
  change_over();
  const auto half = static_cast<uint32_t>(a.head_size / 2);
  const uint32_t per_row = half / kVec;
  const uint32_t thread = blockIdx.x * kThreads + threadIdx.x;
  const uint32_t r = thread / per_row, j = thread % per_row * kVec;
  if (r >= a.rows) return;
  const float position = static_cast<float>(a.positions[r]);
  float cosine[kVec], sine[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    const float exponent = -static_cast<float>(j + i) / static_cast<float>(half);
    const float frequency = slowed_frequency(a, powf(a.base, exponent));
    sincosf(position * frequency, &sine[i], &cosine[i]);
    if (a.inverse) sine[i] = -sine[i];
  }
  const int64_t part = (a.heads + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * part;
  const int64_t end = min(begin + part, a.heads);
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride + begin * a.head_size + j;
  T* y = static_cast<T*>(a.y) + r * a.y_stride + begin * a.head_size + j;
#pragma unroll 2
  for (int64_t h = begin; h < end; ++h, x += a.head_size, y += a.head_size) {
    float low[kVec], high[kVec], y_low[kVec], y_high[kVec];
    load(low, x);
    load(high, x + half);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      y_low[i] = low[i] * cosine[i] - high[i] * sine[i];
      y_high[i] = high[i] * cosine[i] + low[i] * sine[i];
    }
    store(y, y_low);
    store(y + half, y_high);
  }
}

template <class T, int kVec>
void launch(const Context& ctx, const RotaryArgs& a) {
  const int64_t threads = a.rows * (a.head_size / 2 / kVec);
  // Few rows walk their heads side by side.
  constexpr int64_t kEnough = 16384;  // threads: 128 on each of 128 multiprocessors
  const int64_t parts = std::clamp<int64_t>(kEnough / threads, 1, a.heads);
  const dim3 grid(static_cast<unsigned>((threads + kThreads - 1) / kThreads),
                  static_cast<unsigned>(parts));
  SAT_CUDA(launch_kernel(starts_early(ctx, a.rows), rotary_kernel<T, kVec>, grid, dim3(kThreads), 0,
                         cuda::stream_of(ctx), a));
  SAT_CUDA_LAUNCHED("rotary_kernel");
}

}  // namespace

void rotary_cuda(const Context& ctx, const RotaryArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    constexpr int kVec = kWidth<T>;
    const bool wide = aligned16(a.x, a.y) && a.head_size % (2 * kVec) == 0 &&
                      a.x_stride % kVec == 0 && a.y_stride % kVec == 0;
    wide ? launch<T, kVec>(ctx, a) : launch<T, 1>(ctx, a);
  });
}

}  // namespace saturate::kernels
