// SPDX-License-Identifier: Apache-2.0
// Gradients that are one sum over the rows of a head: sinks and ALiBi slopes.
#include "kernels/attention/device.cuh"
#include "kernels/attention/plain/plain.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention {
namespace {

constexpr int kThreads = 512;

// sums[head] = sum over the rows of all sequences of term(head, row); one block a head, and the
// order of the additions depends on the number of rows alone.
template <class Term>
__global__ __launch_bounds__(kThreads) void attention_head_sums_kernel(
    const __grid_constant__ AttentionBackwardArgs b, float* sums, Term term) {
  const AttentionArgs& a = b.forward;
  const int head = static_cast<int>(blockIdx.x);
  float sum = 0.0f;
  for (int64_t r = threadIdx.x; r < a.cu_q[a.sequences]; r += kThreads) sum += term(b, head, r);
  __shared__ float parts[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();  // every warp's part is there
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (float part : parts) sum += part;
  sums[head] = sum;
}

// The sink's score gets no value, so its gradient is -p delta.
struct SinkTerm {
  __device__ float operator()(const AttentionBackwardArgs& b, int head, int64_t row) const {
    const AttentionArgs& a = b.forward;
    const int64_t at = head * a.q_rows + row;
    const float sink = static_cast<const float*>(a.sinks)[head];
    const float p = exp2f((sink - static_cast<const float*>(a.lse)[at]) * kLog2e);
    return -p * static_cast<const float*>(b.delta)[at];
  }
};

struct SlopeTerm {
  __device__ float operator()(const AttentionBackwardArgs& b, int head, int64_t row) const {
    return static_cast<const float*>(b.delta)[head * b.forward.q_rows + row];
  }
};

template <class Term>
void launch(const Context& ctx, const AttentionBackwardArgs& b, void* sums, Term term) {
  attention_head_sums_kernel<<<static_cast<unsigned>(b.forward.heads), kThreads, 0,
                               cuda::stream_of(ctx)>>>(b, static_cast<float*>(sums), term);
  SAT_CUDA_LAUNCHED("attention_head_sums_kernel");
}

}  // namespace

void backward_plain_sinks(const Context& ctx, const AttentionBackwardArgs& b) {
  launch(ctx, b, b.d_sinks, SinkTerm{});
}
void backward_plain_slopes(const Context& ctx, const AttentionBackwardArgs& b) {
  launch(ctx, b, b.d_alibi_slopes, SlopeTerm{});
}

}  // namespace saturate::kernels::attention
