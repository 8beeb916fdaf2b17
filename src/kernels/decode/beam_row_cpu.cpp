// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/beam_row_cpu.h"

#include <cmath>
#include <limits>

#include "kernels/host/vector_math.h"

namespace saturate::kernels {
namespace {

// The largest of z[0 .. n) that are numbers.
template <class T>
T largest(const T* z, int64_t n) {
  constexpr int64_t kLanes = 16;
  T lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<T>::infinity());
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = z[i + l] > lanes[l] ? z[i + l] : lanes[l];
  }
  for (; i < n; ++i) lanes[0] = z[i] > lanes[0] ? z[i] : lanes[0];
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace

template <class T>
std::vector<T> largest_of_stretches(const LogitsRow<T>& logits) {
  std::vector<T> tops(static_cast<size_t>((logits.count + kStretch - 1) / kStretch));
  for (size_t i = 0; i < tops.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * kStretch;
    tops[i] = largest(logits.z + first, std::min(kStretch, logits.count - first));
  }
  return tops;
}
template std::vector<float> largest_of_stretches(const LogitsRow<float>&);
template std::vector<double> largest_of_stretches(const LogitsRow<double>&);

template <class T>
T log_sum(const LogitsRow<T>& logits, const std::vector<T>& tops) {
  const T top = *std::max_element(tops.begin(), tops.end());
  const T* const z = logits.z;
  const T sum = lane_sum<T>(logits.count, [z, top](int64_t c) { return vector_exp(z[c] - top); });
  return top + std::log(sum);
}
template float log_sum(const LogitsRow<float>&, const std::vector<float>&);
template double log_sum(const LogitsRow<double>&, const std::vector<double>&);

}  // namespace saturate::kernels
