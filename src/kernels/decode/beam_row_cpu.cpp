// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/beam_row_cpu.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/decode/beam_row_wide.h"
#include "kernels/host/vector_math.h"

namespace saturate::kernels {
namespace {

// The largest of z[0 .. n) that are numbers.
template <class T>
T largest(const T* z, int64_t n, [[maybe_unused]] bool wide) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>)
    if (wide) return largest_avx512(z, n);
#endif
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

template <class T>
T exp_sum(const T* z, int64_t n, T top, [[maybe_unused]] bool wide) {
#if defined(__x86_64__)
  if constexpr (std::is_same_v<T, float>)
    if (wide) return exp_sum_avx512(z, n, top);
#endif
  return lane_sum<T>(n, [z, top](int64_t c) { return vector_exp(z[c] - top); });
}

}  // namespace

template <class T>
std::vector<T> largest_of_stretches(const LogitsRow<T>& logits) {
  std::vector<T> tops(static_cast<size_t>((logits.count + kStretch - 1) / kStretch));
  for (size_t i = 0; i < tops.size(); ++i) {
    const int64_t first = static_cast<int64_t>(i) * kStretch;
    tops[i] = largest(logits.z + first, std::min(kStretch, logits.count - first), logits.wide);
  }
  return tops;
}
template std::vector<float> largest_of_stretches(const LogitsRow<float>&);
template std::vector<double> largest_of_stretches(const LogitsRow<double>&);

template <class T>
T log_sum(const LogitsRow<T>& logits, const std::vector<T>& tops) {
  const T top = *std::max_element(tops.begin(), tops.end());
  const T* const z = logits.z;
  return top + std::log(exp_sum(z, logits.count, top, logits.wide));
}
template float log_sum(const LogitsRow<float>&, const std::vector<float>&);
template double log_sum(const LogitsRow<double>&, const std::vector<double>&);

}  // namespace saturate::kernels
