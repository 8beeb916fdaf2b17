// SPDX-License-Identifier: Apache-2.0
// One block, one row: read once for the largest score and the sum, once more for the probabilities,
// which the cache then holds.
#include "kernels/attention/materialised/row_softmax.h"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vector.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads) row_softmax_kernel(RowSoftmaxArgs x) {
  __shared__ float shared[kWarp];
  const int64_t row = blockIdx.x;
  const int64_t query = row % x.queries, unit = row / x.queries;
  const int64_t head = unit % x.heads, sequence = unit / x.heads;
  const int64_t seen = x.causal && query + 1 < x.keys ? query + 1 : x.keys;
  const float* s = static_cast<const float*>(x.s) + row * x.stride;
  T* p = static_cast<T*>(x.p) + row * x.stride;

  float top = -CUDART_INF_F, sum = 0.0f;
  for (int64_t j = threadIdx.x; j < seen; j += kThreads) {
    const float score = s[j], higher = fmaxf(top, score);
    sum = sum * __expf(top - higher) + __expf(score - higher);
    top = higher;
  }
  const float row_top = block_max(top, shared);
  // A thread without a key has a sum of 0, and exp(-infinity) is 0.
  const float row_sum = block_sum(sum * __expf(top - row_top), shared);
  const float scale = 1.0f / row_sum;
  for (int64_t j = threadIdx.x; j < x.keys; j += kThreads)
    p[j] = from_float<T>(j < seen ? __expf(s[j] - row_top) * scale : 0.0f);
  if (threadIdx.x == 0)
    static_cast<float*>(x.lse)[(head * x.sequences + sequence) * x.queries + query] =
        row_top + logf(row_sum);
}

}  // namespace

void row_softmax_cuda(const Context& ctx, const RowSoftmaxArgs& x) {
  const auto rows = static_cast<unsigned>(x.sequences * x.heads * x.queries);
  const auto stream = cuda::stream_of(ctx);
  if (x.dtype == DType::bf16) {
    row_softmax_kernel<__nv_bfloat16><<<rows, kThreads, 0, stream>>>(x);
  } else if (x.dtype == DType::f16) {
    row_softmax_kernel<__half><<<rows, kThreads, 0, stream>>>(x);
  } else {
    row_softmax_kernel<float><<<rows, kThreads, 0, stream>>>(x);
  }
  SAT_CUDA_LAUNCHED("row_softmax_cuda");
}

}  // namespace saturate::kernels
