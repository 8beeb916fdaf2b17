// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/growth.h"

#include <algorithm>
#include <array>
#include <vector>

namespace saturate::observe {

namespace {

// Medians of the four quarters.
std::array<double, 4> quarters_of(const std::vector<int64_t>& values) {
  const size_t quarter = values.size() / 4;
  std::array<double, 4> medians{};
  for (size_t q = 0; q < 4; ++q) {
    std::vector<int64_t> part(values.begin() + static_cast<std::ptrdiff_t>(q * quarter),
                              values.begin() + static_cast<std::ptrdiff_t>((q + 1) * quarter));
    const auto middle = part.begin() + static_cast<std::ptrdiff_t>(quarter / 2);
    std::nth_element(part.begin(), middle, part.end());
    medians[q] = static_cast<double>(*middle);
  }
  return medians;
}

bool grows(const std::vector<int64_t>& values) {
  constexpr double kStill = 0.1;  // of the growth, in the last quarter: else a start that is over
  constexpr double kGrows = 0.8;  // of pairs of steps, an eighth of all apart
  const std::array<double, 4> m = quarters_of(values);
  if (!(m[0] < m[1] && m[1] < m[2] && m[2] < m[3])) return false;
  if (m[3] <= kDrifts * m[0] || m[3] - m[2] < kStill * (m[3] - m[0])) return false;
  // What sets in at one moment, such as another thread or program, does not grow before or after. A
  // jump alone is where a recording in windows left out what lies between.
  const size_t apart = values.size() / 8;
  size_t longer = 0, pairs = 0;
  for (size_t i = 0; i + apart < values.size(); ++i, ++pairs)
    longer += values[i + apart] > values[i];
  return static_cast<double>(longer) >= kGrows * static_cast<double>(pairs);
}

}  // namespace

Growth find_growth(const StepAnalysis& s) {
  Growth g;
  const size_t quarter = s.steps.size() / 4;
  if (!s.found || s.drift <= kDrifts || quarter < 3) return g;
  std::array<Budget, 4> sums;
  std::vector<int64_t> times, kernels;
  for (size_t i = 0; i < s.steps.size(); ++i) {
    times.push_back(s.steps[i].end_ns - s.steps[i].start_ns);
    kernels.push_back(s.steps[i].kernels);
    if (i < 4 * quarter) sums[i / quarter] += s.steps[i].budget;
  }
  const std::array<double, 4> medians = quarters_of(times);
  const double grown = medians[3] - medians[0];
  if (!grows(times) && !(grows(kernels) && medians[3] > kDrifts * medians[0])) return g;
  g.found = true;
  g.mean_ns = s.mean_ns;
  g.early_ns = medians[0];
  g.late_ns = medians[3];
  const double a_step = grown / static_cast<double>(3 * quarter);
  const auto before = static_cast<double>(quarter) / 2 + static_cast<double>(s.warm_up);
  g.first_ns = std::max(0.5 * medians[0], medians[0] - a_step * before);
  int64_t most = 0;
  for (size_t l = 0; l < kLeaves; ++l) {
    const int64_t added = sums[3].ns[l] - sums[0].ns[l];
    if (added <= most) continue;
    most = added;
    g.leaf = static_cast<Leaf>(l);
    g.leaf_early_ns = static_cast<double>(sums[0].ns[l]) / static_cast<double>(quarter);
    g.leaf_late_ns = static_cast<double>(sums[3].ns[l]) / static_cast<double>(quarter);
  }
  // Who holds the lock or the core is the cause, however long it takes.
  if (g.leaf == Leaf::gil || g.leaf == Leaf::lock || g.leaf == Leaf::runnable) return {};
  return g;
}

}  // namespace saturate::observe
