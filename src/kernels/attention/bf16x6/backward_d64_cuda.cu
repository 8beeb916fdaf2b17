// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/bf16x6_backward.cuh"

namespace saturate::kernels::attention {

void backward_bf16x6_d64(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_mean_length(b.forward) <= 32 ? BackwardBf16x6<64, 2, 32, 4>::launch(ctx, b)
                                         : BackwardBf16x6<64, 4, 32, 2>::launch(ctx, b);
}

}  // namespace saturate::kernels::attention
