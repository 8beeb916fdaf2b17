// SPDX-License-Identifier: Apache-2.0
// Which of attention.h's features a call uses, so that an implementation can say which one it
// lacks.
#pragma once
#include <cstdint>

#include "kernels/attention/attention.h"

namespace saturate::kernels {

// Bits of a set; causal, dropout, grouped heads and packed lengths are not features: all have them.
enum AttentionFeature : uint32_t {
  kFeatureBottomRight = 1u << 0,  // only where it changes a result
  kFeatureWindow = 1u << 1,       // only where it hides a key
  kFeatureSoftCap = 1u << 2,
  kFeatureBias = 1u << 3,
  kFeatureAlibi = 1u << 4,
  kFeatureSinks = 1u << 5,
  kFeatureRotary = 1u << 6,
  kFeatureValueSize = 1u << 7,  // v_head_size differs from head_size
  kFeatureBlockMask = 1u << 8,
};
constexpr uint32_t kNoFeatures = 0;

uint32_t features_of(const AttentionArgs& args) noexcept;

// Fits when every feature the call uses is in `supported`; the reason names the first that is not.
Fit fits_features(const AttentionArgs& args, uint32_t supported) noexcept;

}  // namespace saturate::kernels
