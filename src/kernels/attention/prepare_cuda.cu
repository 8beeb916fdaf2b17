// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "kernels/attention/device.cuh"
#include "kernels/attention/impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using namespace attention;

constexpr int kThreads = 256;

template <class T>
__device__ void zero_rows(void* base, int64_t stride, int64_t width, int64_t first, int64_t end,
                          int64_t thread, int64_t threads) {
  for (int64_t n = thread; n < (end - first) * width; n += threads)
    row_of<T>(base, first + n / width, stride, 0, 0)[n % width] = from_float<T>(0.0f);
}

// `lanes` threads (a power of two, at most 32) sum one head of one row, kWide elements at a time.
template <class T, int kWide>
__global__ __launch_bounds__(kThreads) void attention_backward_prepare_kernel(
    const __grid_constant__ AttentionBackwardArgs b, int lanes) {
  const AttentionArgs& a = b.forward;
  const int64_t v_head_size = a.v_head_size == 0 ? a.head_size : a.v_head_size;
  const int64_t q_used = a.cu_q[a.sequences], k_used = a.cu_k[a.sequences];
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t threads = int64_t{gridDim.x} * kThreads;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t items = a.q_rows * a.heads;
  // Whole warps stay in the loop together, because the shuffles need them.
  for (int64_t base = thread / 32 * (32 / lanes); base < items; base += threads / lanes) {
    const int64_t item = base + threadIdx.x % 32 / lanes;
    const int64_t row = item / a.heads, head = item % a.heads;
    const bool used = item < items && row < q_used;
    float sum = 0.0f;
    for (int64_t d = lane * kWide; used && d < v_head_size; d += lanes * kWide) {
      float x[kWide], y[kWide];
      load(x, row_of<T>(a.o, row, a.o_stride, head, v_head_size) + d);
      load(y, row_of<T>(b.d_o, row, a.o_stride, head, v_head_size) + d);
#pragma unroll
      for (int i = 0; i < kWide; ++i) sum += x[i] * y[i];
    }
    for (int64_t d = lane * kWide; !used && item < items && d < a.head_size; d += lanes * kWide) {
      const float zero[kWide] = {};
      store(row_of<T>(b.d_q, row, b.d_q_stride, head, a.head_size) + d, zero);
    }
    for (int offset = lanes / 2; offset > 0; offset /= 2)
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
    if (used && lane == 0) static_cast<float*>(b.delta)[head * a.q_rows + row] = sum;
  }
  zero_rows<T>(b.d_k, b.d_k_stride, a.kv_heads * a.head_size, k_used, a.k_rows, thread, threads);
  zero_rows<T>(b.d_v, b.d_v_stride, a.kv_heads * v_head_size, k_used, a.k_rows, thread, threads);
}

template <class T, int kWide>
void launch(const Context& ctx, const AttentionBackwardArgs& b, int lanes) {
  const AttentionArgs& a = b.forward;
  const int64_t groups = (a.q_rows * a.heads * lanes + kThreads - 1) / kThreads;
  // Enough blocks to fill any GPU several times; the loops take what is over.
  const auto blocks = static_cast<unsigned>(std::clamp<int64_t>(groups, 64, 8192));
  attention_backward_prepare_kernel<T, kWide>
      <<<blocks, kThreads, 0, cuda::stream_of(ctx)>>>(b, lanes);
  SAT_CUDA_LAUNCHED("attention_backward_prepare_kernel");
}

}  // namespace

void attention_backward_prepare_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const auto aligned = [](const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
  };
  const int64_t widest = std::max(a.head_size, attention_v_head_size(a));
  const bool wide = a.head_size % 8 == 0 && attention_v_head_size(a) % 8 == 0 &&
                    aligned(a.o, a.o_stride) && aligned(b.d_o, a.o_stride) &&
                    aligned(b.d_q, b.d_q_stride);
  with_device_type(a.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto accesses = static_cast<unsigned>(widest + kWidth<T> - 1) / kWidth<T>;
    wide ? launch<T, kWidth<T>>(ctx, b, static_cast<int>(std::min(std::bit_ceil(accesses), 32u)))
         : launch<T, 1>(ctx, b, 32);
  });
}

}  // namespace saturate::kernels
