// SPDX-License-Identifier: Apache-2.0
// Finds the fastest of many by measuring all a little and the best ones well.
#pragma once
#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "kernels/gemm/tune/configured.h"

namespace saturate::kernels {

struct Ranked {
  size_t id = 0;
  double ms = 0;    // median of its last pass
  int samples = 0;  // in that pass
};

// One timing of each of `ids`, in that order, in milliseconds.
using TimeOnce = std::function<std::vector<double>(std::span<const size_t> ids)>;

// Ids 0 .. count-1 from fast to slow. Passes: quick times all once, then a quarter of them three
// times, and so on until about eight are left for a last pass of 25; exhaustive times all nine
// times and the best 24 once more 41 times. Every pass goes round all of its candidates, so that a
// clock that falls meets all alike. `kept` (one of each kind, say) reach the last pass whatever
// they score.
std::vector<Ranked> rank_by_halving(size_t count, std::span<const size_t> kept, Search search,
                                    const TimeOnce& time_once, const TuneProgress& progress);

}  // namespace saturate::kernels
