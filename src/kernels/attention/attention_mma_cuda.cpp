// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_mma.h"

namespace saturate::kernels {

void attention_forward_mma_cuda(const Context& ctx, const AttentionArgs& a) {
  if (a.head_size == 32) return attention::forward_mma_d32(ctx, a);
  if (a.head_size == 64) return attention::forward_mma_d64(ctx, a);
  attention::forward_mma_d128(ctx, a);
}

void attention_backward_short_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  using namespace attention;
  const int64_t mean = attention_mean_length(b.forward);
  const bool narrow = b.forward.head_size == 32, half = b.forward.dtype == DType::f16;
  const auto launch = narrow ? (half ? backward_short_d32_f16 : backward_short_d32_bf16)
                             : (half ? backward_short_d64_f16 : backward_short_d64_bf16);
  launch(ctx, b, mean);
}

void attention_backward_mma_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  if (b.forward.sequences == 0) return;
  if (b.forward.head_size == 32) return attention::backward_mma_d32(ctx, b);
  if (b.forward.head_size == 64) return attention::backward_mma_d64(ctx, b);
  attention::backward_mma_d128(ctx, b);
}

}  // namespace saturate::kernels
