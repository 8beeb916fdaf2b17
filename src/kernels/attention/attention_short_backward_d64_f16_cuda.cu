// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_mma.h"
#include "kernels/attention/attention_short_backward.cuh"

namespace saturate::kernels::attention {

void backward_short_d64_f16(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean) {
  launch_short_backward<__half, 64>(ctx, b, mean);
}

}  // namespace saturate::kernels::attention
