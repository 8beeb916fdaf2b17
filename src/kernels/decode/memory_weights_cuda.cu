// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/memory_weights_impl.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 128;

// One block, one row: a thread has every 128th position, of which it keeps score and sum itself.
template <class T>
__global__ void __launch_bounds__(kThreads) memory_weights_kernel(MemoryWeightsArgs a) {
  extern __shared__ float shared[];  // (max_positions) scores, (max_positions) sums over heads
  __shared__ float scratch[kWarp];
  const int64_t row = blockIdx.x;
  if (a.finished[row] != 0) return;
  const int length = a.lengths[row], size = static_cast<int>(a.head_size);
  const int64_t kv_width = a.kv_heads * a.head_size;
  float *const p = shared, *const sums = shared + a.max_positions;
  const T* const keys = static_cast<const T*>(a.memory) + a.starts[row] * 2 * kv_width;
  for (int j = threadIdx.x; j < length; j += kThreads) sums[j] = 0.0f;
  for (int64_t h = a.first_head; h < a.first_head + a.head_count; ++h) {
    const T* const q = static_cast<const T*>(a.q) + (row * a.heads + h) * size;
    const int64_t column = h / (a.heads / a.kv_heads) * size;
    float top = -CUDART_INF_F;
    for (int j = threadIdx.x; j < length; j += kThreads) {
      const T* const k = keys + j * 2 * kv_width + column;
      float score = 0.0f;
      for (int c = 0; c < size; ++c) score = fmaf(to_float(q[c]), to_float(k[c]), score);
      p[j] = score * a.scale;
      top = fmaxf(top, p[j]);
    }
    top = block_max(top, scratch);
    float sum = 0.0f;
    for (int j = threadIdx.x; j < length; j += kThreads) sum += p[j] = __expf(p[j] - top);
    sum = block_sum(sum, scratch);
    for (int j = threadIdx.x; j < length; j += kThreads) sums[j] += p[j] / sum;
  }
  float* const to = a.w + (int64_t{a.slot_starts[row]} + a.positions[row]) * a.stride;
  for (int j = threadIdx.x; j < length; j += kThreads)
    to[j] = sums[j] / static_cast<float>(a.head_count);
}

}  // namespace

void memory_weights_cuda(const Context& ctx, const MemoryWeightsArgs& a) {
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto shared = static_cast<size_t>(2 * a.max_positions) * sizeof(float);
    memory_weights_kernel<T>
        <<<static_cast<unsigned>(a.rows), kThreads, shared, cuda::stream_of(ctx)>>>(a);
    SAT_CUDA_LAUNCHED("memory_weights_kernel");
  });
}

}  // namespace saturate::kernels
