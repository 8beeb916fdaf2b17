// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_features.h"
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_forward.cuh"

namespace saturate::kernels {

void attention_forward_plain_cuda(const Context& ctx, const AttentionArgs& a) {
  if (features_of(a) == kNoFeatures) return attention::launch_forward_plain<false>(ctx, a);
  attention::forward_plain_with_features(ctx, a);
}

}  // namespace saturate::kernels
