// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/impl.h"
#include "kernels/attention/mma/mma.h"

namespace saturate::kernels {

void attention_forward_mma_cuda(const Context& ctx, const AttentionArgs& a) {
  if (a.head_size == 32) return attention::launch_forward_mma<32>(ctx, a);
  if (a.head_size == 64) return attention::launch_forward_mma<64>(ctx, a);
  attention::launch_forward_mma<128>(ctx, a);
}

void attention_backward_mma_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  if (b.forward.sequences == 0) return;
  if (b.forward.head_size == 32) return attention::launch_backward_mma<32>(ctx, b);
  if (b.forward.head_size == 64) return attention::launch_backward_mma<64>(ctx, b);
  attention::launch_backward_mma<128>(ctx, b);
}

}  // namespace saturate::kernels
