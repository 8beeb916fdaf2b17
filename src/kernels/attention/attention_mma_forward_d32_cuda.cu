// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_mma_forward.cuh"

namespace saturate::kernels::attention {

void forward_mma_d32(const Context& ctx, const AttentionArgs& a) {
  launch_forward_for_type<32>(ctx, a);
}

}  // namespace saturate::kernels::attention
