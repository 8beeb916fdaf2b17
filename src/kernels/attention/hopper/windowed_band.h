// SPDX-License-Identifier: Apache-2.0
// How far the windowed instances of the Hopper forward kernels go through the heads at a time.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/attention/features.h"

namespace saturate::kernels::attention {

// Heads whose tiles of queries are dealt together, so that the keys and values of heads at work at
// one time stay in L2.
inline int windowed_band(const AttentionArgs& a) noexcept {
  constexpr int64_t kBytes = int64_t{32} << 20;
  const auto ceil_div = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t width = a.head_size + attention_v_head_size(a);
  const int64_t most = std::max<int64_t>(1, kBytes / std::max<int64_t>(1, a.max_k * width * 2));
  const int64_t all = std::max<int64_t>(1, a.sequences * a.kv_heads);
  const int64_t bands = ceil_div(all, most);
  return static_cast<int>(ceil_div(all, bands) * (a.heads / a.kv_heads));
}

}  // namespace saturate::kernels::attention
