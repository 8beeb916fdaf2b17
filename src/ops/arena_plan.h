// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace saturate {

// A value alive from operation `first` to operation `last`, both included.
struct ArenaRequest {
  size_t bytes;
  int32_t first, last;
};

struct ArenaPlan {
  std::vector<int64_t> offsets;  // one for each request, multiples of 256
  size_t bytes = 0;              // size of the arena
};

// Gives every request its offset so that two that are alive together do not overlap. Greedy by
// size: largest first, each at the lowest free offset; within 10% of the lower bound on Transformer
// steps (the test states the bound). Deterministic. Source: Pisarchyk and Lee, "Efficient memory
// management for deep neural net inference", arXiv:2001.03288 (greedy by size).
ArenaPlan plan_arena(const std::vector<ArenaRequest>& requests);
// The same for lives that are no stretch of one list: `meet` says whether two requests are ever
// alive together.
ArenaPlan plan_arena(const std::vector<size_t>& bytes,
                     const std::function<bool(size_t, size_t)>& meet);

// Largest sum of bytes alive at one operation: no plan can be smaller.
size_t arena_lower_bound(const std::vector<ArenaRequest>& requests);

}  // namespace saturate
