// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/curve.h"

#include <algorithm>

namespace saturate::observe {

void Curve::add(int64_t time_ns, double value) {
  if (samples_++ == 0) {
    first_ns_ = time_ns;
    first_ = most_ = value;
  }
  last_ = value;
  most_ = std::max(most_, value);
  const int64_t since = std::max<int64_t>(0, time_ns - first_ns_);
  while (static_cast<uint64_t>(since / stretch_ns_) >= kStretches) {
    for (size_t i = 0; i < stretches_.size(); ++i) {
      const std::optional<double> s = stretches_[i];
      if (i % 2 == 0)
        stretches_[i / 2] = s;
      else if (s)
        stretches_[i / 2] = std::max(stretches_[i / 2].value_or(*s), *s);
    }
    stretches_.resize((stretches_.size() + 1) / 2);
    stretch_ns_ *= 2;
  }
  const auto at = static_cast<size_t>(since / stretch_ns_);
  if (at >= stretches_.size()) stretches_.resize(at + 1);
  stretches_[at] = std::max(stretches_[at].value_or(value), value);
}

std::vector<Curve::Point> Curve::points() const {
  std::vector<Point> points;
  for (size_t i = 0; i < stretches_.size(); ++i)
    if (stretches_[i]) points.push_back({static_cast<int64_t>(i) * stretch_ns_, *stretches_[i]});
  return points;
}

double lasting_growth(const std::vector<Curve::Point>& points) {
  const size_t n = points.size(), quarter = n / 4;
  if (n < 12) return 1;
  const auto median = [&](size_t from) {
    std::vector<double> values;
    for (size_t i = from; i < from + quarter; ++i) values.push_back(points[i].most);
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(quarter / 2),
                     values.end());
    return values[quarter / 2];
  };
  const double early = median(0), third = median(n - 2 * quarter), late = median(n - quarter);
  if (!(early > 0) || late <= early || late - third < 0.1 * (late - early)) return 1;
  int64_t up = 0, pairs = 0;
  for (size_t i = 0; i < n; ++i)
    for (size_t j = i + 1; j < n; ++j) {
      ++pairs;
      up += points[j].most > points[i].most;
    }
  return static_cast<double>(up) >= 0.7 * static_cast<double>(pairs) ? late / early : 1;
}

}  // namespace saturate::observe
