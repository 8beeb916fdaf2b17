// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/halving.h"

#include <algorithm>
#include <numeric>

namespace saturate::kernels {
namespace {

constexpr size_t kFinalists = 8;

double median(std::vector<double> v) {
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

struct Pass {
  int samples;
  size_t survivors;
};

std::vector<Pass> passes_for(size_t count, Search search) {
  if (search == Search::exhaustive) return {{9, std::min<size_t>(count, 24)}, {41, 0}};
  std::vector<Pass> passes;
  for (int samples = 1; count > kFinalists; samples += 2) {
    count = std::max(kFinalists, count / 4);
    passes.push_back({samples, count});
  }
  passes.push_back({25, 0});
  return passes;
}

}  // namespace

std::vector<Ranked> rank_by_halving(size_t count, std::span<const size_t> kept, Search search,
                                    const TimeOnce& time_once, const TuneProgress& progress) {
  std::vector<size_t> alive(count);
  std::iota(alive.begin(), alive.end(), size_t{0});
  std::vector<Ranked> ranked(count);
  const std::vector<Pass> passes = passes_for(count, search);
  size_t total = 0, done = 0, expected = count;
  for (const Pass& p : passes) {
    total += expected * static_cast<size_t>(p.samples);
    expected = p.survivors + kept.size();
  }
  const auto faster = [&](size_t a, size_t b) { return ranked[a].ms < ranked[b].ms; };
  for (const Pass& pass : passes) {
    std::vector<std::vector<double>> ms(count);
    for (int s = 0; s < pass.samples; ++s) {
      const std::vector<double> times = time_once(alive);
      for (size_t i = 0; i < alive.size(); ++i) ms[alive[i]].push_back(times[i]);
      done += alive.size();
      progress(std::min(done, total), total);
    }
    for (const size_t id : alive) ranked[id] = {id, median(ms[id]), pass.samples};
    std::stable_sort(alive.begin(), alive.end(), faster);
    if (pass.survivors == 0) break;
    std::vector<size_t> next(alive.begin(), alive.begin() + static_cast<std::ptrdiff_t>(std::min(
                                                                pass.survivors, alive.size())));
    for (const size_t id : kept) {
      if (std::find(next.begin(), next.end(), id) == next.end()) next.push_back(id);
    }
    alive = std::move(next);
  }
  // Those measured in more passes first: one lucky sample does not beat a median of 25.
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return a.samples != b.samples ? a.samples > b.samples : a.ms < b.ms;
  });
  return ranked;
}

}  // namespace saturate::kernels
