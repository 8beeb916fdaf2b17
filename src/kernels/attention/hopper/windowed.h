// SPDX-License-Identifier: Apache-2.0
// Which keys a query sees, for the instances of the Hopper kernels that know windows, bottom-right
// alignment and sinks ("windowed": what matters is where a query stands among the keys).
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/features.h"

namespace saturate::kernels::attention {

constexpr uint32_t kWindowedFeatures = kFeatureBottomRight | kFeatureWindow | kFeatureSinks;
// What changes a score beyond hiding it has instances of its own ("score_mod", as FlexAttention calls it), which know the former
// too; a call may have a cap or slopes, not both.
constexpr uint32_t kScoreModFeatures = kFeatureSoftCap | kFeatureAlibi;

// Query i of a sequence stands at i' = i + shift and sees the keys i' - left .. i' + right.
struct WindowedArgs {
  int left, right;  // at most the longest sequence, so that sums of three positions fit 32 bits
  bool bottom_right;
  const float* sinks;  // one a head, or null
  // Score modification: factors of capped(), 0 without a cap; a slope a head, or null.
  float cap_in, cap_out;
  const float* slopes;
  int tiles, band;  // forward: tiles of queries of a head; heads whose tiles are dealt together

#ifdef __CUDACC__
  __device__ __forceinline__ int shift(int queries, int keys) const {
    return bottom_right ? keys - queries : 0;
  }
  // soft_cap tanh(scale x / soft_cap), for powers of two. tanh(x) = 2 / (1 + e^-2x) - 1: the error
  // is a unit of 1, so of the cap.
  __device__ __forceinline__ float capped(float x) const {
    float y, z;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * cap_in));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(z) : "f"(1.0f + y));
    return 2.0f * cap_out * z - cap_out;
  }
#endif
};

// Fits when a Hopper kernel has the features of the call.
inline Fit fits_windowed(const AttentionArgs& a) noexcept {
  if (const Fit f = fits_features(a, kWindowedFeatures | kScoreModFeatures); !f) return f;
  if (a.soft_cap > 0.0f && a.alibi_slopes) return {"a soft cap and ALiBi slopes together"};
  return {};
}

inline WindowedArgs windowed_of(const AttentionArgs& a) {
  const int64_t longest = std::max(a.max_q, a.max_k);
  WindowedArgs p{};
  p.left = static_cast<int>(std::min(a.window_left, longest));
  p.right = a.causal ? 0 : static_cast<int>(std::min(a.window_right, longest));
  p.bottom_right = a.alignment == CausalAlignment::bottom_right;
  p.sinks = static_cast<const float*>(a.sinks);
  constexpr float kToPowersOfTwo = 1.44269504f;  // log2(e)
  if (a.soft_cap > 0.0f) {
    p.cap_in = -2.0f * kToPowersOfTwo * a.scale / a.soft_cap;
    p.cap_out = a.soft_cap * kToPowersOfTwo;
  }
  p.slopes = static_cast<const float*>(a.alibi_slopes);
  return p;
}

}  // namespace saturate::kernels::attention
