// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace saturate::observe {

// A value over time in constant memory: the largest of each of at most 512 stretches of equal
// length, which doubles when the time outgrows them.
class Curve {
 public:
  struct Point {
    int64_t time_ns;  // since the first sample, of the start of the stretch
    double most;
  };

  // Samples from before the first one count as of its stretch.
  void add(int64_t time_ns, double value);
  bool empty() const { return samples_ == 0; }
  int64_t samples() const { return samples_; }
  int64_t first_ns() const { return first_ns_; }  // the first sample's time
  double first() const { return first_; }
  double last() const { return last_; }
  double most() const { return most_; }
  // Of the stretches that have a sample, in order.
  std::vector<Point> points() const;

 private:
  static constexpr size_t kStretches = 512;
  std::vector<std::optional<double>> stretches_;
  int64_t first_ns_ = 0, stretch_ns_ = 100'000, samples_ = 0;
  double first_ = 0, last_ = 0, most_ = 0;
};

// Lasting growth: the ratio of the medians of the last and the first quarter of the points, when at
// least 12 there are, 70% of all pairs agree that it goes up, and the last quarter still grew over
// the third by a tenth of all the growth; else 1. So neither a start nor a sawtooth is growth.
double lasting_growth(const std::vector<Curve::Point>& points);

}  // namespace saturate::observe
