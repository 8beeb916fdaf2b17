// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/decode/memory_weights_impl.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
void weigh(const MemoryWeightsArgs& a, int64_t row, std::vector<T>& p, std::vector<T>& mean) {
  const int64_t kv_width = a.kv_heads * a.head_size;
  const auto length = static_cast<size_t>(a.lengths[row]);
  p.resize(length);
  mean.assign(length, T(0));
  for (int64_t h = a.first_head; h < a.first_head + a.head_count; ++h) {
    const T* q = static_cast<const T*>(a.q) + (row * a.heads + h) * a.head_size;
    T top = -std::numeric_limits<T>::infinity();
    for (size_t j = 0; j < length; ++j) {
      const T* k = static_cast<const T*>(a.memory) +
                   (a.starts[row] + static_cast<int64_t>(j)) * 2 * kv_width +
                   h / (a.heads / a.kv_heads) * a.head_size;
      p[j] = static_cast<T>(a.scale) *
             lane_sum<T>(a.head_size, [q, k](int64_t c) { return q[c] * k[c]; });
      top = std::max(top, p[j]);
    }
    T sum = 0;
    for (T& each : p) sum += each = vector_exp(each - top);
    for (size_t j = 0; j < length; ++j) mean[j] += p[j] / sum;
  }
  float* const to = a.w + (a.slot_starts[row] + a.positions[row]) * a.stride;
  for (size_t j = 0; j < length; ++j)
    to[j] = static_cast<float>(mean[j] / static_cast<T>(a.head_count));
}

template <class T>
void run(const MemoryWeightsArgs& a) {
  parallel_for(a.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> p, mean;
    for (int64_t row = begin; row < end; ++row) {
      if (a.finished[row] == 0) weigh(a, row, p, mean);
    }
  });
}

}  // namespace

void memory_weights_cpu(const Context&, const MemoryWeightsArgs& a) {
  a.dtype == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace saturate::kernels
