// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/hopper/backward_problem.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels::attention::hopper {
namespace {

constexpr int kThreads = 256;

// slopes[head] = -sum of the head's `count` sums; one block a head, always in the same order.
__global__ __launch_bounds__(kThreads) void attention_slope_sums_kernel(const float* sums,
                                                                        int64_t count,
                                                                        float* slopes) {
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) sum += sums[blockIdx.x * count + i];
  __shared__ float parts[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
  __syncthreads();  // every warp's part is there
  if (threadIdx.x != 0) return;
  sum = 0.0f;
  for (float part : parts) sum += part;
  slopes[blockIdx.x] = -sum;
}

}  // namespace

void backward_slopes(const Context& ctx, const BackwardProblem& p) {
  attention_slope_sums_kernel<<<static_cast<unsigned>(p.b.forward.heads), kThreads, 0,
                                cuda::stream_of(ctx)>>>(p.slope_sums, p.key_pieces * kBackwardWarps,
                                                        static_cast<float*>(p.b.d_alibi_slopes));
  SAT_CUDA_LAUNCHED("attention_slope_sums_kernel");
}

}  // namespace saturate::kernels::attention::hopper
