// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/fp8/fp8_forward.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

void attention_forward_fp8_cuda(const Context& ctx, const AttentionFp8Args& x) {
  using namespace attention;
  const AttentionArgs& a = x.attention;
  const int64_t needed = (a.max_q + kFp8Queries - 1) / kFp8Queries;
  const int tiles = needed > 0 ? static_cast<int>(needed) : 1;
  const dim3 grid(static_cast<unsigned>((a.sequences + 1) * tiles), static_cast<unsigned>(a.heads));
  const auto stream = cuda::stream_of(ctx);
  if (a.head_size == 64) {
    forward_fp8_kernel<64><<<grid, kFp8Threads, 0, stream>>>(x, tiles);
  } else {
    forward_fp8_kernel<128><<<grid, kFp8Threads, 0, stream>>>(x, tiles);
  }
  SAT_CUDA_LAUNCHED("attention_forward_fp8_cuda");
}

}  // namespace saturate::kernels
