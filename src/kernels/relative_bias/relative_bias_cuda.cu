// SPDX-License-Identifier: Apache-2.0
#include "kernels/relative_bias/relative_bias_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) relative_bias_kernel(RelativeBiasArgs a) {
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (n >= a.heads * a.queries * a.keys) return;
  const int64_t j = n % a.keys, i = n / a.keys % a.queries, h = n / a.keys / a.queries;
  const int64_t bucket = a.buckets[a.sign * j - i];
  static_cast<float*>(a.bias)[n] = static_cast<const float*>(a.table)[bucket * a.heads + h];
}

}  // namespace

void relative_bias_cuda(const Context& ctx, const RelativeBiasArgs& a) {
  const int64_t count = a.heads * a.queries * a.keys;
  relative_bias_kernel<<<static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads, 0,
                         cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("relative_bias_kernel");
}

}  // namespace saturate::kernels
