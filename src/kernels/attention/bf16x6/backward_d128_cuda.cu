// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_mma_features.h"
#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/bf16x6_backward.cuh"

namespace saturate::kernels::attention {

void backward_bf16x6_d128(const Context& ctx, const AttentionBackwardArgs& b) {
  using Wide = BackwardBf16x6<128, 8, 16, 1>;
  Wide::kSharedBytes <= shared_bytes(ctx.device.index)
      ? Wide::launch(ctx, b)
      : BackwardBf16x6<128, 2, 16, 1>::launch(ctx, b);
}

}  // namespace saturate::kernels::attention
