// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees, for the instances of the Hopper kernels that know windows, bottom-right
// alignment and sinks ("placed": what matters is where a query stands among the keys).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention_features.h"

namespace saturate::kernels::attention {

constexpr uint32_t kPlacedFeatures = kFeatureBottomRight | kFeatureWindow | kFeatureSinks;

// Query i of a sequence stands at i' = i + shift and sees the keys i' - left .. i' + right.
struct PlacedArgs {
  int left, right;  // at most the longest sequence, so that sums of three positions fit 32 bits
  bool bottom_right;
  const float* sinks;  // one a head, or null
  int tiles, band;     // forward: tiles of queries of a head; heads whose tiles are dealt together

#ifdef __CUDACC__
  __device__ __forceinline__ int shift(int queries, int keys) const {
    return bottom_right ? keys - queries : 0;
  }
#endif
};

inline PlacedArgs placed_of(const AttentionArgs& a) {
  const int64_t longest = std::max(a.max_q, a.max_k);
  PlacedArgs p{};
  p.left = static_cast<int>(std::min(a.window_left, longest));
  p.right = a.causal ? 0 : static_cast<int>(std::min(a.window_right, longest));
  p.bottom_right = a.alignment == CausalAlignment::bottom_right;
  p.sinks = static_cast<const float*>(a.sinks);
  return p;
}

}  // namespace saturate::kernels::attention
