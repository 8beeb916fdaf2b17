// SPDX-License-Identifier: Apache-2.0
#include "train/memory_fit.h"

#include <cmath>
#include <numeric>

namespace saturate::train {

std::optional<MemoryTrial> MemoryFit::cheapest(parallel::Communicator& ranks) const {
  const auto fits = [&](const StepMemory& m) {
    return ranks.all_reduce_max(m.total() > limit ? 1 : 0) == 0;
  };
  if (!automatic) {
    for (MemoryTrial t; t.halvings <= halvings; ++t.halvings) {
      const auto m = plan(t);
      if (!m) break;
      if (fits(*m)) return t;
    }
    return std::nullopt;
  }
  std::optional<MemoryTrial> best;
  double best_ms = 0;
  const auto take = [&](const MemoryTrial& t, const StepMemory& m) {
    const double ms =
        ranks.all_reduce_max(std::ldexp(m.recompute.micro_batch_ms, static_cast<int>(t.halvings)));
    if (best && best_ms <= ms) return;
    best = t;
    best_ms = ms;
  };
  // For each size of the micro-batch as little computed again as fits.
  for (int64_t h = 0; h <= halvings; ++h) {
    const auto none = plan({.halvings = h, .units = 0});
    if (!none) break;
    if (fits(*none)) {
      take({.halvings = h, .units = 0}, *none);
      break;  // smaller ones could only cost more
    }
    int64_t few = 0,
            enough =
                static_cast<int64_t>(ranks.all_reduce_max(static_cast<double>(none->recompute.of)));
    auto fitting = plan({.halvings = h, .units = enough});
    if (!fits(*fitting)) continue;
    while (enough - few > 1) {
      const int64_t middle = std::midpoint(few, enough);
      const auto fewer = plan({.halvings = h, .units = middle});
      if (fits(*fewer)) {
        fitting = fewer;
        enough = middle;
      } else {
        few = middle;
      }
    }
    take({.halvings = h, .units = enough}, *fitting);
  }
  return best;
}

}  // namespace saturate::train
