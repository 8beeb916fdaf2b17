// SPDX-License-Identifier: Apache-2.0
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "kernels/head_norm/head_norm_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kWarps = 4;  // of a block; a warp owns a head, which has 64 to 256 channels as a rule

template <class T>
__global__ void __launch_bounds__(kWarps* kWarp) head_norm_kernel(HeadNormArgs a) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (item >= a.rows * a.heads) return;  // whole warps leave
  const int64_t r = item / a.heads, h = item % a.heads;
  const int lane = threadIdx.x % kWarp, size = static_cast<int>(a.head_size);
  const T* x = static_cast<const T*>(a.x) + r * a.x_stride + h * size;
  T* y = static_cast<T*>(a.y) + r * a.y_stride + h * size;
  float square = 0.0f;
  for (int c = lane; c < size; c += kWarp) square += to_float(x[c]) * to_float(x[c]);
  const float rstd = rsqrtf(warp_sum(square) / static_cast<float>(size) + a.eps);
  const float* weight = static_cast<const float*>(a.weight);
  for (int c = lane; c < size; c += kWarp) y[c] = from_float<T>(to_float(x[c]) * rstd * weight[c]);
}

}  // namespace

void head_norm_cuda(const Context& ctx, const HeadNormArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto blocks = static_cast<unsigned>((a.rows * a.heads + kWarps - 1) / kWarps);
    head_norm_kernel<T><<<blocks, kWarps * kWarp, 0, cuda::stream_of(ctx)>>>(a);
    SAT_CUDA_LAUNCHED("head_norm_kernel");
  });
}

}  // namespace saturate::kernels
