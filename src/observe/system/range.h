// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <optional>

namespace saturate::observe {

// Samples of one value, summed up.
struct Range {
  double least = 0, mean = 0, most = 0;
  int samples = 0;
};

// Adds a sample; nothing when it is not known.
template <class T>
void add(std::optional<Range>& range, const std::optional<T>& value) {
  if (!value) return;
  const auto v = static_cast<double>(*value);
  if (!range) range = Range{v, 0, v, 0};
  range->least = std::min(range->least, v);
  range->most = std::max(range->most, v);
  range->mean += (v - range->mean) / ++range->samples;
}

}  // namespace saturate::observe
