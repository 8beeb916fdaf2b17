// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace saturate {

struct ArenaPlan {
  std::vector<int64_t> offsets;  // one for each request, multiples of 256
  size_t bytes = 0;              // size of the arena
};

// Gives every request of so many bytes an offset. Two that meet, which is to say that they are ever
// alive together, do not overlap. Greedy by size: largest first, each at the lowest free offset;
// within 10% of the lower bound on Transformer steps (the test states the bound). Deterministic.
// Cost: quadratic in requests. Source: Pisarchyk and Lee, "Efficient memory management for deep
// neural net inference", arXiv:2001.03288 (greedy by size).
ArenaPlan plan_arena(const std::vector<size_t>& bytes,
                     const std::function<bool(size_t, size_t)>& meet);

}  // namespace saturate
