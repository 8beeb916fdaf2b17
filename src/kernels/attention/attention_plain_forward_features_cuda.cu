// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_forward.cuh"

namespace saturate::kernels::attention {

void forward_plain_with_features(const Context& ctx, const AttentionArgs& a) {
  launch_forward_plain<true>(ctx, a);
}

}  // namespace saturate::kernels::attention
