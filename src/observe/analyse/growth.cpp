// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/growth.h"

#include <algorithm>
#include <array>
#include <vector>

namespace saturate::observe {

Growth find_growth(const StepAnalysis& s) {
  Growth g;
  constexpr double kStill = 0.1;  // of the growth, in the last quarter: else a start that is over
  constexpr double kGrows = 0.8;  // of pairs of steps, an eighth of all apart
  const size_t quarter = s.steps.size() / 4;
  if (!s.found || s.drift <= kDrifts || quarter < 3) return g;
  std::array<double, 4> medians{};
  std::array<Budget, 4> sums;
  for (size_t q = 0; q < 4; ++q) {
    std::vector<int64_t> times;
    for (size_t i = q * quarter; i < (q + 1) * quarter; ++i) {
      times.push_back(s.steps[i].end_ns - s.steps[i].start_ns);
      sums[q] += s.steps[i].budget;
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(quarter / 2);
    std::nth_element(times.begin(), middle, times.end());
    medians[q] = static_cast<double>(*middle);
  }
  const double grown = medians[3] - medians[0];
  if (!(medians[0] < medians[1] && medians[1] < medians[2] && medians[2] < medians[3])) return g;
  if (medians[3] - medians[2] < kStill * grown) return g;
  // What sets in at one moment, such as another thread or program, does not grow before or after. A
  // jump alone is where a recording in windows left out what lies between.
  const size_t apart = s.steps.size() / 8;
  size_t longer = 0, pairs = 0;
  for (size_t i = 0; i + apart < s.steps.size(); ++i, ++pairs)
    longer += s.steps[i + apart].end_ns - s.steps[i + apart].start_ns >
              s.steps[i].end_ns - s.steps[i].start_ns;
  if (static_cast<double>(longer) < kGrows * static_cast<double>(pairs)) return g;
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
