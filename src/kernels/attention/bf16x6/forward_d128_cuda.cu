// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_mma_features.h"
#include "kernels/attention/bf16x6/bf16x6.h"
#include "kernels/attention/bf16x6/bf16x6_forward.cuh"

namespace saturate::kernels::attention {

void forward_bf16x6_d128(const Context& ctx, const AttentionArgs& a) {
  using Wide = ForwardBf16x6<128, 8, 32, 1>;
  Wide::kSharedBytes <= shared_bytes(ctx.device.index)
      ? Wide::launch(ctx, a)
      : ForwardBf16x6<128, 4, 32, 2>::launch(ctx, a);
}

}  // namespace saturate::kernels::attention
