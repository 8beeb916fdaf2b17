// SPDX-License-Identifier: Apache-2.0
#include "kernels/adapters/keep_columns_impl.h"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) keep_columns_kernel(KeepColumnsArgs a, uint32_t cols) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;  // below 2^32, as fits says
  const uint32_t r = i / cols;
  if (r >= a.rows) return;
  const int32_t c = static_cast<int32_t>(i - r * cols);
  const int32_t g = a.group_of_row[r * a.group_stride];
  if (g >= 0 && g < a.groups && c >= a.begins[g] && c < a.begins[g + 1]) return;
  static_cast<T*>(a.x)[i] = from_float<T>(0.0f);
}

}  // namespace

void keep_columns_cuda(const Context& ctx, const KeepColumnsArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto cols = static_cast<uint32_t>(a.begins[static_cast<size_t>(a.groups)]);
    const auto blocks = static_cast<unsigned>((a.rows * cols + kThreads - 1) / kThreads);
    keep_columns_kernel<T><<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(a, cols);
    SAT_CUDA_LAUNCHED("keep_columns_kernel");
  });
}

}  // namespace saturate::kernels
