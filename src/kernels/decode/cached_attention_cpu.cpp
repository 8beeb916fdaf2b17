// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "kernels/decode/cached_attention_impl.h"
#include "kernels/decode/cached_row.h"
#include "kernels/host/vector_math.h"
#include "runtime/parallel_for.h"

// The vector arguments of inlined functions never cross an ABI border.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace saturate::kernels {
namespace {

// A row takes four positions at a time through all of its heads, so that keys and values are read
// as they lie. The order of every sum depends on the head's size and the positions alone.
template <class T, bool kAvx512>
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
    CachedRow<T> row{.q = q,
                     .keys = s.keys.data(),
                     .fours = static_cast<int64_t>(s.keys.size()) / kKeys,
                     .count = count,
                     .heads = a_.heads,
                     .group = a_.heads / a_.kv_heads,
                     .head_size = size_,
                     .values = kv_width_,
                     .scale = scale_,
                     .weights = s.weights.data(),
                     .stride = stride,
                     .o = o};
    scores(row);
    for (int64_t h = 0; h < a_.heads; ++h) adjust(h, count, row.weights + h * stride);
    weights(row);
    values(row);
  }

 private:
  static constexpr int64_t W = 32 / static_cast<int64_t>(sizeof(T));
  static constexpr int64_t kKeys = kCachedKeys;
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
  // Asks for what head h will read of four positions while others are computed: positions lie apart,
  // so the processor does not see them coming.
  static void fetch(const CachedRow<T>& r, int64_t h, const T* const* keys, int64_t offset) {
    if (h % r.group != 0) return;  // these heads share a key
    constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
    for (int64_t i = 0; i < kKeys; ++i) {
      const T* const key = keys[i] + offset + h / r.group * r.head_size;
      for (int64_t c = 0; c < r.head_size; c += kLine) __builtin_prefetch(key + c);
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

  static void scores(const CachedRow<T>& r) {
    if constexpr (kAvx512) return cached_scores_avx512(r);
    for (int64_t i = 0; i < r.fours; ++i) {
      const T* const* const keys = r.keys + i * kKeys;
      const bool more = i + 1 < r.fours;  // keys to come; else the first values are next
      for (int64_t h = 0; h < r.heads; ++h) {
        fetch(r, h, more ? keys + kKeys : r.keys, more ? 0 : r.values);
        score(r, r.q + h * r.head_size, keys, h / r.group * r.head_size,
              r.weights + h * r.stride + i * kKeys);
      }
    }
  }

  static void score(const CachedRow<T>& r, const T* q, const T* const* keys, int64_t column,
                    T* to) {
    Vec sum[kKeys] = {}, odd[kKeys] = {};
    int64_t c = 0;
    for (; c + 2 * W <= r.head_size; c += 2 * W) {
      const Vec x = load(q + c), y = load(q + c + W);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kKeys; ++i) {
        sum[i] += x * load(keys[i] + column + c);
        odd[i] += y * load(keys[i] + column + c + W);
      }
    }
    for (; c + W <= r.head_size; c += W) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kKeys; ++i) sum[i] += load(q + c) * load(keys[i] + column + c);
    }
    for (int64_t i = 0; i < kKeys; ++i) sum[i] += odd[i];
    T total[kKeys];
    sums_of(sum, total);
    for (int64_t i = 0; i < kKeys; ++i) {
      for (int64_t rest = c; rest < r.head_size; ++rest)
        total[i] += q[rest] * keys[i][column + rest];
      to[i] = r.scale * total[i];
    }
  }

  void adjust(int64_t h, int64_t count, T* p) const {
    if (a_.soft_cap > 0.0f) {
      const T cap = static_cast<T>(a_.soft_cap);
      for (int64_t j = 0; j < count; ++j) p[j] = cap * std::tanh(p[j] / cap);
    }
    if (a_.bias != nullptr) {
      const T* const bias = static_cast<const T*>(a_.bias) + h * a_.bias_stride;
      for (int64_t j = 0; j < count; ++j) p[j] += bias[count - 1 - j];
    }
  }

  // Scores become weights; what lies behind `count` becomes 0.
  static void weights(const CachedRow<T>& r) {
    if constexpr (kAvx512) return cached_softmax_avx512(r);
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    for (int64_t h = 0; h < r.heads; ++h) {
      T* const p = r.weights + h * r.stride;
      std::fill(p + r.count, p + r.stride, kNone);
      Vec tops = Vec{} + kNone;
      for (int64_t j = 0; j < r.stride; j += W) {
        const Vec s = load(p + j);
        tops = s > tops ? s : tops;
      }
      T top = tops[0];
      for (int64_t l = 1; l < W; ++l) top = tops[l] > top ? tops[l] : top;
      for (int64_t j = 0; j < r.stride; ++j) p[j] = vector_exp(p[j] - top);
      const T inverse = T(1) / lane_sum<T>(r.stride, [p](int64_t j) { return p[j]; });
      for (int64_t j = 0; j < r.stride; ++j) p[j] *= inverse;
    }
  }

  static void values(const CachedRow<T>& r) {
    if constexpr (kAvx512) return cached_values_avx512(r);
    for (int64_t i = 0; i < r.fours; ++i) {
      const T* const* const keys = r.keys + i * kKeys;
      for (int64_t h = 0; h < r.heads; ++h) {
        if (i + 1 < r.fours) fetch(r, h, keys + kKeys, r.values);
        add(r, r.weights + h * r.stride + i * kKeys, keys, r.values + h / r.group * r.head_size,
            r.o + h * r.head_size);
      }
    }
  }

  static void add(const CachedRow<T>& r, const T* p, const T* const* keys, int64_t column, T* o) {
    int64_t c = 0;
    for (; c + W <= r.head_size; c += W) {
      Vec sum = load(o + c);
#pragma GCC unroll 4
      for (int64_t i = 0; i < kKeys; ++i) sum += p[i] * load(keys[i] + column + c);
      std::memcpy(o + c, &sum, sizeof sum);
    }
    for (; c < r.head_size; ++c) {
      for (int64_t i = 0; i < kKeys; ++i) o[c] += p[i] * keys[i][column + c];
    }
  }

  const CachedAttentionArgs& a_;
  const int64_t size_, q_width_, kv_width_;
  const T scale_;
};

template <class T, bool kAvx512 = false>
void run(const CachedAttentionArgs& args) {
  using Rows = Problem<T, kAvx512>;
  const Rows rows(args);
  parallel_for(args.rows, 1, [&](int64_t begin, int64_t end) {
    typename Rows::Scratch scratch;
    for (int64_t r = begin; r < end; ++r) rows.row(r, scratch);
  });
}

}  // namespace

void cached_attention_cpu(const Context&, const CachedAttentionArgs& a) {
  a.dtype == DType::f64 ? run<double>(a) : run<float>(a);
}

#if defined(__x86_64__)
void cached_attention_avx512_cpu(const Context&, const CachedAttentionArgs& a) {
  run<float, true>(a);
}
#else
void cached_attention_avx512_cpu(const Context&, const CachedAttentionArgs&) { SAT_ASSERT(false); }
#endif

}  // namespace saturate::kernels
