// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "apps/bench_against.h"

namespace saturate::apps {
namespace {

// How many of the smallest of n values lie below their median's lower bound: the bound is wrong at most one time in a
// hundred, as each value is above the true median like a coin shows heads. 0: n is too small for a bound.
size_t rank_of_bound(size_t n) {
  double chance = std::pow(0.5, static_cast<double>(n)), sum = 0;
  for (size_t k = 0; k <= n / 2; ++k) {
    sum += chance;
    if (sum > 0.01) return k;
    chance *= static_cast<double>(n - k) / static_cast<double>(k + 1);
  }
  return n / 2;
}

BenchRatio interval_of(std::vector<double> ratios) {
  std::sort(ratios.begin(), ratios.end());
  const size_t n = ratios.size(), rank = rank_of_bound(n);
  const double median = (ratios[(n - 1) / 2] + ratios[n / 2]) / 2;
  if (rank == 0) return {median, 0, INFINITY};
  return {median, ratios[rank - 1], ratios[n - rank]};
}

}  // namespace

BenchRatio compare_in_turns(std::span<const double> before, std::span<const double> now) {
  std::vector<double> ratios;
  for (size_t i = 0; i < now.size(); ++i) ratios.push_back(now[i] / before[i]);
  return interval_of(ratios);
}

BenchRatio compare_with_row(double before, double spread, std::span<const double> now) {
  std::vector<double> ratios;
  for (const double ms : now) ratios.push_back(ms / before);
  BenchRatio r = interval_of(ratios);
  if (spread < 0) spread = (r.high - r.low) / (2 * r.ratio);
  r.low /= 1 + spread;
  r.high *= 1 + spread;
  return r;
}

}  // namespace saturate::apps
