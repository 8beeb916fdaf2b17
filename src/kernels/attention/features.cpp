// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/features.h"

#include <algorithm>

namespace saturate::kernels {

uint32_t features_of(const AttentionArgs& a) noexcept {
  // |i' - j| stays below the longer of the two lengths, whichever the alignment.
  const int64_t longest = std::max(a.max_q, a.max_k);
  // The same offsets: every sequence has as many queries as keys, so both alignments agree.
  const bool square = a.cu_q == a.cu_k;
  const bool left = a.window_left < longest;
  const bool right = a.window_right < longest && !a.causal;
  const bool by_position = a.causal || left || right || a.alibi_slopes || a.rotary_base > 0.0f;
  uint32_t f = 0;
  if (a.alignment == CausalAlignment::bottom_right && by_position && !square)
    f |= kFeatureBottomRight;
  if (left || right) f |= kFeatureWindow;
  if (a.soft_cap > 0.0f) f |= kFeatureSoftCap;
  if (a.bias) f |= kFeatureBias;
  if (a.alibi_slopes) f |= kFeatureAlibi;
  if (a.sinks) f |= kFeatureSinks;
  if (a.rotary_base > 0.0f) f |= kFeatureRotary;
  if (attention_v_head_size(a) != a.head_size) f |= kFeatureValueSize;
  if (a.block_mask) f |= kFeatureBlockMask;
  return f;
}

Fit fits_features(const AttentionArgs& a, uint32_t supported) noexcept {
  const uint32_t lacking = features_of(a) & ~supported;
  if (lacking & kFeatureBottomRight) return {"no bottom-right causal alignment"};
  if (lacking & kFeatureWindow) return {"no sliding window"};
  if (lacking & kFeatureSoftCap) return {"no soft cap"};
  if (lacking & kFeatureBias) return {"no additive bias"};
  if (lacking & kFeatureAlibi) return {"no ALiBi slopes"};
  if (lacking & kFeatureSinks) return {"no attention sinks"};
  if (lacking & kFeatureRotary) return {"no fused rotary positions"};
  if (lacking & kFeatureValueSize) return {"no value head size of its own"};
  if (lacking & kFeatureBlockMask) return {"no block mask"};
  return {};
}

}  // namespace saturate::kernels
