// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

template <class T>
struct Problem {
  explicit Problem(const CachedAttentionArgs& args)
      : a(args),
        q_width(a.heads * a.head_size),
        kv_width(a.kv_heads * a.head_size),
        scale(static_cast<T>(a.scale)) {}

  // [k | v] of the whole slot.
  T* history(int64_t row, int64_t position) const {
    return static_cast<T*>(a.cache) + slot(row, position) * 2 * kv_width;
  }
  int64_t slot(int64_t row, int64_t position) const {
    if (a.page_table != nullptr)
      return a.page_table[row * a.page_table_stride + position / a.page_size] * a.page_size +
             position % a.page_size;
    const int64_t own = a.starts[row] + position;
    return a.slots != nullptr && position < a.positions[row] ? a.slots[own] : own;
  }

  void row(int64_t r, std::vector<T>& p) const {
    T* o = static_cast<T*>(a.o) + r * q_width;
    const bool memory = a.lengths != nullptr;
    const int64_t last = memory ? a.lengths[r] - 1 : a.positions[r];
    if (last < 0 || (a.finished != nullptr && a.finished[r] != 0)) {
      std::fill_n(o, q_width, T{0});
      return;
    }
    const T* qkv = static_cast<const T*>(a.qkv) + r * (q_width + (memory ? 0 : 2 * kv_width));
    if (!memory) std::copy_n(qkv + q_width, 2 * kv_width, history(r, last));
    p.resize(static_cast<size_t>(last + 1));
    for (int64_t h = 0; h < a.heads; ++h) {
      head(r, h, qkv + h * a.head_size, h / (a.heads / a.kv_heads) * a.head_size, p,
           o + h * a.head_size);
    }
  }

  void head(int64_t r, int64_t h, const T* q, int64_t kv_column, std::vector<T>& p, T* o) const {
    T top = -std::numeric_limits<T>::infinity();
    const size_t first =
        a.window > 0 && std::ssize(p) > a.window ? p.size() - static_cast<size_t>(a.window) : 0;
    const T* bias = static_cast<const T*>(a.bias) + (a.bias != nullptr ? h * a.bias_stride : 0);
    for (size_t j = first; j < p.size(); ++j) {
      const T* k = history(r, static_cast<int64_t>(j)) + kv_column;
      p[j] = scale * lane_sum<T>(a.head_size, [q, k](int64_t c) { return q[c] * k[c]; });
      if (a.soft_cap > 0.0f) {
        const T cap = static_cast<T>(a.soft_cap);
        p[j] = cap * std::tanh(p[j] / cap);
      }
      if (a.bias != nullptr) p[j] += bias[p.size() - 1 - j];
      top = std::max(top, p[j]);
    }
    T sum = 0;
    for (size_t j = first; j < p.size(); ++j) sum += p[j] = vector_exp(p[j] - top);
    std::fill_n(o, a.head_size, T{0});
    for (size_t j = first; j < p.size(); ++j) {
      const T* v = history(r, static_cast<int64_t>(j)) + kv_width + kv_column;
      const T weight = p[j] / sum;
      for (int64_t c = 0; c < a.head_size; ++c) o[c] += weight * v[c];
    }
  }

  const CachedAttentionArgs& a;
  int64_t q_width, kv_width;
  T scale;
};

template <class T>
void run(const CachedAttentionArgs& args) {
  const Problem<T> problem(args);
  parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    std::vector<T> p;
    for (int64_t r = begin; r < end; ++r) problem.row(r, p);
  });
}

}  // namespace

void cached_attention_cpu(const Context&, const CachedAttentionArgs& a) {
  a.dtype == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace saturate::kernels
