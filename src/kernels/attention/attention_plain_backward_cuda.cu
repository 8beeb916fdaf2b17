// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_features.h"
#include "kernels/attention/attention_plain.h"
#include "kernels/attention/attention_plain_backward.cuh"

namespace saturate::kernels {

void attention_backward_plain_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  if (b.d_sinks) attention::backward_plain_sinks(ctx, b);
  if (b.d_bias) attention::backward_plain_bias(ctx, b);
  if (b.forward.sequences > 0) {
    if (features_of(b.forward) == kNoFeatures)
      attention::launch_backward_plain<false>(ctx, b);
    else
      attention::backward_plain_with_features(ctx, b);
  }
  if (b.d_alibi_slopes) attention::backward_plain_slopes(ctx, b);
}

}  // namespace saturate::kernels
