// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_mma_backward.cuh"

namespace saturate::kernels::attention {

void backward_mma_d32(const Context& ctx, const AttentionBackwardArgs& b) {
  launch_backward_for_type<32>(ctx, b);
}

}  // namespace saturate::kernels::attention
