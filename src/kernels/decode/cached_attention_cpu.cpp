// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

// The vector arguments of inlined functions never cross an ABI border.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace saturate::kernels {
namespace {

// A row takes four positions at a time through all of its heads, so that keys and values are read
// as they lie. The order of every sum depends on the head's size and the positions alone.
template <class T>
class Problem {
 public:
  explicit Problem(const CachedAttentionArgs& args)
      : a_(args),
        size_(args.head_size),
        q_width_(args.heads * args.head_size),
        kv_width_(args.kv_heads * args.head_size),
        scale_(static_cast<T>(args.scale)) {}

  // What one thread works in.
  struct Scratch {
    std::vector<const T*> keys;  // [k | v] of the positions that are seen, to whole fours
    std::vector<T> weights;      // of each head, to whole sixteens
  };

  void row(int64_t r, Scratch& s) const {
    T* const o = static_cast<T*>(a_.o) + r * q_width_;
    const bool memory = a_.lengths != nullptr;
    const int64_t last = memory ? a_.lengths[r] - 1 : a_.positions[r];
    std::fill_n(o, q_width_, T{0});
    if (last < 0 || (a_.finished != nullptr && a_.finished[r] != 0)) return;
    const T* const q =
        static_cast<const T*>(a_.qkv) + r * (q_width_ + (memory ? 0 : 2 * kv_width_));
    if (!memory) std::copy_n(q + q_width_, 2 * kv_width_, history(r, last));
    const int64_t first = a_.window > 0 ? std::max<int64_t>(0, last + 1 - a_.window) : 0;
    const int64_t count = last + 1 - first, stride = (count + 15) / 16 * 16;
    s.keys.clear();
    for (int64_t j = first; j <= last; ++j) s.keys.push_back(history(r, j));
    s.keys.resize((s.keys.size() + kKeys - 1) / kKeys * kKeys, s.keys.back());  // of weight 0
    s.weights.resize(static_cast<size_t>(a_.heads * stride));
    T* const p = s.weights.data();
    for (int64_t j = 0; j < count; j += kKeys) {
      const T* const* const keys = s.keys.data() + j;
      const bool more = j + kKeys < count;  // keys to come; else the first values are next
      for (int64_t h = 0; h < a_.heads; ++h) {
        fetch(h, more ? keys + kKeys : s.keys.data(), more ? 0 : kv_width_);
        score(q + h * size_, keys, column(h), p + h * stride + j);
      }
    }
    for (int64_t h = 0; h < a_.heads; ++h) softmax(h, count, stride, p + h * stride);
    for (int64_t j = 0; j < count; j += kKeys) {
      const T* const* const keys = s.keys.data() + j;
      for (int64_t h = 0; h < a_.heads; ++h) {
        if (j + kKeys < count) fetch(h, keys + kKeys, kv_width_);
        add(p + h * stride + j, keys, kv_width_ + column(h), o + h * size_);
      }
    }
  }

 private:
  static constexpr int64_t W = 32 / static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kKeys = 4;
  typedef T Vec __attribute__((vector_size(32)));
  static Vec load(const T* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }

  // [k | v] of the whole slot.
  T* history(int64_t row, int64_t position) const {
    return static_cast<T*>(a_.cache) + slot(row, position) * 2 * kv_width_;
  }
  int64_t slot(int64_t row, int64_t position) const {
    if (a_.page_table != nullptr)
      return a_.page_table[row * a_.page_table_stride + position / a_.page_size] * a_.page_size +
             position % a_.page_size;
    const int64_t own = a_.starts[row] + position;
    return a_.slots != nullptr && position < a_.positions[row] ? a_.slots[own] : own;
  }
  // Of a query head's key.
  int64_t column(int64_t h) const { return h / (a_.heads / a_.kv_heads) * size_; }

  // Asks for what head h will read of four positions while others are computed: positions lie apart,
  // so the processor does not see them coming.
  void fetch(int64_t h, const T* const* keys, int64_t offset) const {
    if (h % (a_.heads / a_.kv_heads) != 0) return;  // these heads share a key
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < kKeys; ++i) {
      const T* const key = keys[i] + offset + column(h);
      for (int64_t c = 0; c < size_; c += kLine) __builtin_prefetch(key + c);
    }
  }

  // The sums of the elements of four vectors.
  static void sums_of(const Vec (&v)[kKeys], T* to) {
    if constexpr (W == 8) {  // pairs meet, then fours, then halves
      const auto pairs = [](Vec a, Vec b) {
        return __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
               __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
      };
      const Vec a = pairs(v[0], v[1]), b = pairs(v[2], v[3]);
      const Vec c = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
                    __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
      for (int64_t i = 0; i < kKeys; ++i) to[i] = c[i] + c[i + kKeys];
    } else {
      for (int64_t i = 0; i < kKeys; ++i) to[i] = (v[i][0] + v[i][2]) + (v[i][1] + v[i][3]);
    }
  }

  void score(const T* q, const T* const* keys, int64_t column, T* to) const {
    Vec sum[kKeys] = {};
    int64_t c = 0;
    for (; c + W <= size_; c += W) {
      const Vec x = load(q + c);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kKeys; ++i) sum[i] += x * load(keys[i] + column + c);
    }
    T total[kKeys];
    sums_of(sum, total);
    for (int64_t i = 0; i < kKeys; ++i) {
      for (int64_t rest = c; rest < size_; ++rest) total[i] += q[rest] * keys[i][column + rest];
      to[i] = scale_ * total[i];
    }
  }

  // Scores become weights; what lies behind `count` becomes 0.
  void softmax(int64_t h, int64_t count, int64_t stride, T* p) const {
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    if (a_.soft_cap > 0.0f) {
      const T cap = static_cast<T>(a_.soft_cap);
      for (int64_t j = 0; j < count; ++j) p[j] = cap * std::tanh(p[j] / cap);
    }
    if (a_.bias != nullptr) {
      const T* const bias = static_cast<const T*>(a_.bias) + h * a_.bias_stride;
      for (int64_t j = 0; j < count; ++j) p[j] += bias[count - 1 - j];
    }
    std::fill(p + count, p + stride, kNone);
    Vec tops = Vec{} + kNone;
    for (int64_t j = 0; j < stride; j += W) {
      const Vec s = load(p + j);
      tops = s > tops ? s : tops;
    }
    T top = tops[0];
    for (int64_t l = 1; l < W; ++l) top = tops[l] > top ? tops[l] : top;
    for (int64_t j = 0; j < stride; ++j) p[j] = vector_exp(p[j] - top);
    const T inverse = T(1) / lane_sum<T>(stride, [p](int64_t j) { return p[j]; });
    for (int64_t j = 0; j < stride; ++j) p[j] *= inverse;
  }

  void add(const T* p, const T* const* keys, int64_t column, T* o) const {
    int64_t c = 0;
    for (; c + W <= size_; c += W) {
      Vec sum = load(o + c);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kKeys; ++i) sum += p[i] * load(keys[i] + column + c);
      std::memcpy(o + c, &sum, sizeof sum);
    }
    for (; c < size_; ++c) {
      for (int64_t i = 0; i < kKeys; ++i) o[c] += p[i] * keys[i][column + c];
    }
  }

  const CachedAttentionArgs& a_;
  const int64_t size_, q_width_, kv_width_;
  const T scale_;
};

template <class T>
void run(const CachedAttentionArgs& args) {
  const Problem<T> problem(args);
  parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    typename Problem<T>::Scratch scratch;
    for (int64_t r = begin; r < end; ++r) problem.row(r, scratch);
  });
}

}  // namespace

void cached_attention_cpu(const Context&, const CachedAttentionArgs& a) {
  a.dtype == DType::f64 ? run<double>(a) : run<float>(a);
}

}  // namespace saturate::kernels
