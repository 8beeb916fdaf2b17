// SPDX-License-Identifier: Apache-2.0
// Backward pass for compute capability 9.0: f16 or bf16, head size 64 or 128; windows, alignment,
// sinks, soft cap or ALiBi slopes (windowed.h), or dropout.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/features.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// Bytes of workspace, aligned to 256: the fp32 sums of d_q, in blocks of at most 128 queries of
// which every sequence may end in one begun, and two counters for each block of at least 64.
// With ALiBi slopes also a sum for each of 8 warps and each block of 128 keys.
inline int64_t attention_backward_hopper_workspace(const AttentionArgs& a) noexcept {
  const int64_t slopes = a.alibi_slopes == nullptr ? 0 : (a.k_rows / 128 + a.sequences) * 8 * 4;
  return a.heads * ((a.q_rows + 128 * a.sequences) * a.head_size * 4 +
                    (a.q_rows / 64 + a.sequences) * 8 + slopes) +
         256;
}

// Fits when the Hopper kernels, forward and backward, have the dropout of the call.
inline Fit attention_hopper_dropout_fits(const AttentionArgs& a) noexcept {
  if (a.dropout > 0.0f && features_of(a) != kNoFeatures) return {"dropout together with a feature"};
  if (a.dropout > kAttentionDropoutPairs) return {"dropout is above 31/32"};
  return {};
}

inline int64_t attention_backward_hopper_workspace(const Context&,
                                                   const AttentionBackwardArgs& b) noexcept {
  return attention_backward_hopper_workspace(b.forward);
}

Fit attention_backward_hopper_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept;
// Refuses short sequences, which are for tiles of their own size.
Fit attention_backward_hopper_pays(const Context& ctx, const AttentionBackwardArgs& b) noexcept;
// b.workspace holds sums of d_q, fp32; the contract is attention.h's.
void attention_backward_hopper_cuda(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace saturate::kernels
