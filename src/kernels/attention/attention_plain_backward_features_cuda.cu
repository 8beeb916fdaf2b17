// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_backward.cuh"

namespace saturate::kernels::attention {

void backward_plain_with_features(const Context& ctx, const AttentionBackwardArgs& b) {
  launch_backward_plain<true>(ctx, b);
}

}  // namespace saturate::kernels::attention
