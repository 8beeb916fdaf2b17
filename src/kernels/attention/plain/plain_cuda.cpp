// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/plain/plain.h"

#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"

namespace saturate::kernels {

using namespace attention;

void attention_forward_plain_cuda(const Context& ctx, const AttentionArgs& a) {
  features_of(a) == kNoFeatures ? launch_forward_plain<false>(ctx, a)
                                : launch_forward_plain<true>(ctx, a);
}

void attention_backward_plain_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  attention_backward_prepare_cuda(ctx, b);
  if (b.d_sinks) backward_plain_sinks(ctx, b);
  if (b.d_bias) backward_plain_bias(ctx, b);
  if (b.forward.sequences > 0)
    features_of(b.forward) == kNoFeatures ? launch_backward_plain<false>(ctx, b)
                                          : launch_backward_plain<true>(ctx, b);
  if (b.d_alibi_slopes) backward_plain_slopes(ctx, b);
}

}  // namespace saturate::kernels
