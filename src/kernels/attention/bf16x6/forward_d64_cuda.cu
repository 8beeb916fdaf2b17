// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_impl.h"
#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/bf16x6_forward.cuh"

namespace saturate::kernels::attention {

void forward_bf16x6_d64(const Context& ctx, const AttentionArgs& a) {
  attention_mean_length(a) <= 32 ? ForwardBf16x6<64, 2, 32, 4>::launch(ctx, a)
                                 : ForwardBf16x6<64, 8, 32, 2>::launch(ctx, a);
}

}  // namespace saturate::kernels::attention
