// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv2d_gemm.h"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::conv {
namespace {

constexpr int kThreads = 256;

// partial (splits, groups, c8), d_w (groups, channels); a group is a filter's tap.
template <class T>
__global__ void __launch_bounds__(kThreads)
    conv2d_join_kernel(const float* partial, T* d_w, int64_t groups, int channels, int c8,
                       int splits) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (at >= groups * channels) return;
  const int64_t group = at / channels;
  const float* from = partial + group * c8 + at % channels;
  float sum = 0.0f;
  for (int s = 0; s < splits; ++s) sum += from[s * groups * c8];
  d_w[at] = from_float<T>(sum);
}

}  // namespace

void join_weight_gradient(const Context& ctx, const Conv2dBackwardArgs& b, const Split& split) {
  const Conv2dArgs& x = b.forward;
  const int64_t groups = x.filters * x.filter_height * x.filter_width;
  const auto blocks = static_cast<unsigned>((groups * x.channels + kThreads - 1) / kThreads);
  with_device_type(x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    conv2d_join_kernel<<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(
        static_cast<const float*>(ctx.workspace), static_cast<T*>(b.d_w), groups,
        static_cast<int>(x.channels), static_cast<int>((x.channels + 7) / 8 * 8), split.count);
  });
  SAT_CUDA_LAUNCHED("conv2d_join_kernel");
}

}  // namespace saturate::kernels::conv
