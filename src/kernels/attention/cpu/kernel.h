// SPDX-License-Identifier: Apache-2.0
// Attention of one (sequence, head) on one CPU thread, written for vectors of kBytes.
//
// Keys and values of the head are copied into dense panels, k transposed, so that every inner loop
// runs over adjacent elements: scores over keys, outputs over the head. Four query rows share each
// load. No sum is reordered by the compiler, so results repeat bit for bit on one machine.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/attention/cpu/features.h"
#include "kernels/attention/dropout.h"

// The vector arguments of inlined functions never cross an ABI border.
#pragma GCC diagnostic ignored "-Wpsabi"
#define SAT_INLINE [[gnu::always_inline]] static inline

namespace saturate::kernels {

// Panels are rounded up to 16 elements: at least the widest vector.
constexpr int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

template <int kBytes, class T>
struct AttentionCpu {
  static constexpr int64_t W = kBytes / static_cast<int64_t>(sizeof(T));
  static constexpr int64_t R = 4;  // query rows that share one pass over the keys
  typedef T Vec __attribute__((vector_size(kBytes)));

  SAT_INLINE Vec load(const T* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  SAT_INLINE void store(T* p, Vec v) { std::memcpy(p, &v, sizeof v); }

  // e^x for x <= 88. float: 2^n e^r with n = round(x / ln 2), |r| <= ln(2)/2 and Taylor's sum to
  // r^7, whose tail is below 0.35^8 / 8! = 6e-9; with the rounding of eight multiply-adds the error
  // is under 2 ulp. Below -87.33 (results under 2^-126) it is 0. double: the C library's.
  SAT_INLINE Vec exp_of(Vec x) {
    Vec y;
    if constexpr (sizeof(T) == 8) {
      for (int64_t l = 0; l < W; ++l) y[l] = std::exp(x[l]);
    } else {
      typedef uint32_t Bits __attribute__((vector_size(kBytes)));
      // Adding kRound leaves the nearest integer, and that integer in the low bits.
      constexpr float kLowest = -87.33654f, kRound = 0x1.8p23f;
      const Vec lowest = Vec{} + kLowest;
      const Vec c = x < lowest ? lowest : x;
      const Vec t = c * 0x1.715476p+0f + kRound;
      const Vec n = t - kRound;
      const Vec r = (c - n * 0x1.62ep-1f) - n * 0x1.0bfbe8p-15f;  // ln 2 in two parts
      Vec p = r * (1.0f / 5040) + (1.0f / 720);
      p = p * r + (1.0f / 120);
      p = p * r + (1.0f / 24);
      p = p * r + (1.0f / 6);
      p = p * r + 0.5f;
      p = p * r + 1.0f;
      p = p * r + 1.0f;
      Bits power;
      std::memcpy(&power, &t, sizeof power);
      power = (power << 23) + 0x3F800000u;
      Vec scale;
      std::memcpy(&scale, &power, sizeof scale);
      y = x < lowest ? Vec{} : p * scale;
    }
    return y;
  }

  template <int C>
  SAT_INLINE void product_tile(const T* a, int64_t lda, int64_t depth, const T* b, int64_t ldb,
                               T* c, int64_t ldc) {
    Vec sum[R][C] = {};
    for (int64_t x = 0; x < depth; ++x) {
      Vec bx[C];
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) bx[n] = load(b + x * ldb + n * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const T s = a[r * lda + x];
#pragma GCC unroll 4
        for (int n = 0; n < C; ++n) sum[r][n] += s * bx[n];
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) store(c + r * ldc + n * W, sum[r][n]);
  }

  // c (R, cols) = a (R, depth) b (depth, cols); cols is a multiple of W.
  SAT_INLINE void product(const T* a, int64_t lda, int64_t depth, const T* b, int64_t ldb, T* c,
                          int64_t ldc, int64_t cols) {
    int64_t n = 0;
    for (; n + 2 * W <= cols; n += 2 * W) product_tile<2>(a, lda, depth, b + n, ldb, c + n, ldc);
    for (; n < cols; n += W) product_tile<1>(a, lda, depth, b + n, ldb, c + n, ldc);
  }

  template <int C>
  SAT_INLINE void add_outer_tile(T* sum, int64_t rows, const T* a, int64_t lda, const T* x,
                                 int64_t width) {
    Vec xs[R][C];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) xs[r][n] = load(x + r * width + n * W);
    for (int64_t j = 0; j < rows; ++j) {
      Vec s[C];
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) s[n] = load(sum + j * width + n * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const T f = a[r * lda + j];
#pragma GCC unroll 4
        for (int n = 0; n < C; ++n) s[n] += f * xs[r][n];
      }
#pragma GCC unroll 4
      for (int n = 0; n < C; ++n) store(sum + j * width + n * W, s[n]);
    }
  }

  // sum (rows, width) += a^T x with a (R, rows), x (R, width).
  SAT_INLINE void add_outer(T* sum, int64_t rows, const T* a, int64_t lda, const T* x,
                            int64_t width) {
    int64_t d = 0;
    for (; d + 2 * W <= width; d += 2 * W) add_outer_tile<2>(sum + d, rows, a, lda, x + d, width);
    for (; d < width; d += W) add_outer_tile<1>(sum + d, rows, a, lda, x + d, width);
  }

  // dst (rows, width) dense from strided rows of D; what is beyond `rows` of `padded_rows` and D is
  // 0.
  SAT_INLINE void copy_rows(T* dst, int64_t width, const void* base, int64_t first, int64_t stride,
                            int64_t head, int64_t D, int64_t rows, int64_t padded_rows) {
    const T* src = static_cast<const T*>(base) + first * stride + head * D;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < D; ++d) dst[r * width + d] = src[r * stride + d];
      for (int64_t d = D; d < width; ++d) dst[r * width + d] = T(0);
    }
    for (int64_t i = rows * width; i < padded_rows * width; ++i) dst[i] = T(0);
  }
  SAT_INLINE void copy_transposed(T* dst, int64_t keys_padded, const void* base, int64_t first,
                                  int64_t stride, int64_t head, int64_t D, int64_t rows) {
    const T* src = static_cast<const T*>(base) + first * stride + head * D;
    // 16 x 4 at a time: whole vectors are written, and four adjacent elements read of each row.
    int64_t r = 0;
    for (; r + 16 <= rows; r += 16) {
      int64_t d = 0;
      for (; d + 4 <= D; d += 4) {
        T block[4][16];
        for (int64_t i = 0; i < 16; ++i)
          for (int64_t j = 0; j < 4; ++j) block[j][i] = src[(r + i) * stride + d + j];
        for (int64_t j = 0; j < 4; ++j)
          std::memcpy(dst + (d + j) * keys_padded + r, block[j], sizeof block[j]);
      }
      for (; d < D; ++d)
        for (int64_t i = 0; i < 16; ++i) dst[d * keys_padded + r + i] = src[(r + i) * stride + d];
    }
    for (int64_t d = 0; d < D; ++d)
      for (int64_t i = r; i < keys_padded; ++i)
        dst[d * keys_padded + i] = i < rows ? src[i * stride + d] : T(0);
  }

  // Replaces p[0..keys) by p or 0; the factor 1/(1-p) is applied by the caller.
  // bits: as many as there are keys, rounded up to 16.
  SAT_INLINE void drop(const AttentionArgs& a, int64_t h, int64_t first_row, int64_t i,
                       int64_t keys, uint32_t* bits, T* p) {
    const uint64_t first =
        attention_dropout_block(h * a.rng.rows + a.rng.first_row + first_row, i, 0);
    const uint32_t least = attention_dropout_least(a.dropout);
    const uint64_t seed = a.rng.state[0], step = a.rng.state[1];
    const uint32_t op = a.rng.site;
    const int word = attention_dropout_word(i, 0);
    // A block has four of this row's numbers, for keys j, j + 1, j + 8 and j + 9.
    for (int64_t b = 0; b < (keys + 15) / 16 * 4; ++b) {
      const Random4 r = random_block(seed, step, op, first + static_cast<uint64_t>(b));
      uint32_t* to = bits + b / 4 * 16 + b % 4 * 2;
      to[0] = r.x[word] & 0x7FFF, to[1] = r.x[word] >> 16 & 0x7FFF;
      to[8] = r.x[2 + word] & 0x7FFF, to[9] = r.x[2 + word] >> 16 & 0x7FFF;
    }
    for (int64_t j = 0; j < keys; ++j) p[j] = bits[j] >= least ? p[j] : T(0);
  }

  // Elements of 64-byte aligned scratch that one thread needs for sequences of up to max_k keys and
  // heads of up to `size` elements.
  static int64_t scratch_elements(int64_t max_k, int64_t size) {
    const int64_t keys = padded(max_k), width = padded(size);
    // Backward, the larger: k and v in three panels, sums of d_k and d_v; then blocks of query
    // rows, four by head size and three by keys, a row of random numbers and one of cap slopes.
    return 5 * keys * width + R * (4 * width + 3 * keys) + 2 * keys;
  }

  // Softmax weights of p[begin..end) in place, without the division; the row's lse and sum.
  struct Softmax {
    T lse, sum;
  };
  SAT_INLINE Softmax softmax(T* p, int64_t begin, int64_t end, T scale, T sink) {
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    Vec tops = Vec{} + kNone, sums = {};
    for (int64_t j = begin; j < end; j += W) {
      const Vec s = load(p + j);
      tops = s > tops ? s : tops;
    }
    T top = tops[0], sum = 0;
    for (int64_t l = 1; l < W; ++l) top = tops[l] > top ? tops[l] : top;
    if (sink > top * scale) top = sink / scale;
    if (top == kNone) top = 0;  // nothing to see: every weight below is 0
    for (int64_t j = begin; j < end; j += W) {
      const Vec e = exp_of((load(p + j) - top) * scale);
      sums += e;
      store(p + j, e);
    }
    for (int64_t l = 0; l < W; ++l) sum += sums[l];
    if (sink != kNone) sum += std::exp(sink - top * scale);
    return {sum > 0 ? top * scale + std::log(sum) : kNone, sum};
  }

  // What R rows of queries from row i on see together, begin and end rounded to whole vectors.
  template <bool kFeatures>
  SAT_INLINE KeyRange block_range(const AttentionArgs& a, const HeadFeatures<T>& f, int64_t i,
                                  int64_t rows, int64_t keys) {
    if constexpr (!kFeatures) return {0, a.causal && i + rows < keys ? i + rows : keys};
    const KeyRange first = f.range(i), last = f.range(i + rows - 1);
    return {first.begin < first.end ? first.begin / W * W : 0, last.end};
  }
  template <bool kFeatures>
  SAT_INLINE KeyRange row_range(const AttentionArgs& a, const HeadFeatures<T>& f, int64_t i,
                                int64_t keys) {
    if constexpr (kFeatures) return f.range(i);
    return {0, a.causal && i + 1 < keys ? i + 1 : keys};
  }

  // kFeatures: with everything attention.h offers; without, only causal order and dropout.
  template <bool kFeatures>
  static void forward(const AttentionArgs& a, int64_t seq, int64_t h, T* scratch) {
    const int64_t D = a.head_size, V = attention_v_head_size(a), width = padded(D > V ? D : V);
    const int64_t kv = h / (a.heads / a.kv_heads);
    const int64_t q0 = a.cu_q[seq], queries = a.cu_q[seq + 1] - q0;
    const int64_t k0 = a.cu_k[seq], keys = a.cu_k[seq + 1] - k0, ld = padded(keys);
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    const T scale = kFeatures ? T(1) : static_cast<T>(a.scale);
    const T keep = T(1) / (T(1) - static_cast<T>(a.dropout));
    const HeadFeatures<T> features(a, seq, h);
    const bool rotates = kFeatures && a.rotary_base > 0.0f;
    T* k_t = scratch;
    T* v = k_t + ld * width;
    T* q = v + ld * width;
    T* o = q + R * width;
    T* p = o + R * width;
    auto* bits = reinterpret_cast<uint32_t*>(p + R * ld);
    T* lse = static_cast<T*>(a.lse) + h * a.q_rows + q0;
    if (queries > 0 && keys > 0) {
      copy_transposed(k_t, ld, a.k, k0, a.k_stride, kv, D, keys);
      copy_rows(v, width, a.v, k0, a.v_stride, kv, V, keys, keys);
      if (rotates) rotate_heads(k_t, keys, 1, ld, D, a.rotary_base, 0, 1);
    }
    for (int64_t i = 0; i < queries; i += R) {
      const int64_t rows = queries - i < R ? queries - i : R;
      const KeyRange seen = block_range<kFeatures>(a, features, i, rows, keys);
      const int64_t lo = seen.begin, cols = lo + (seen.end - lo + W - 1) / W * W;
      copy_rows(q, width, a.q, q0 + i, a.q_stride, h, D, rows, R);
      if (rotates) rotate_heads(q, rows, width, 1, D, a.rotary_base, features.aligned(i), 1);
      product(q, width, D, k_t + lo, ld, p + lo, ld, cols - lo);
      T inverse[R] = {};
      for (int64_t r = 0; r < rows; ++r) {
        T* pr = p + r * ld;
        const KeyRange own = row_range<kFeatures>(a, features, i + r, keys);
        for (int64_t j = lo; j < own.begin; ++j) pr[j] = kNone;
        for (int64_t j = own.end > lo ? own.end : lo; j < cols; ++j) pr[j] = kNone;
        if constexpr (kFeatures) features.score(i + r, own, pr, nullptr);
        const Softmax row = softmax(pr, lo, cols, scale, kFeatures ? features.sink() : kNone);
        lse[i + r] = row.lse;
        inverse[r] = row.sum > 0 ? keep / row.sum : T(0);
        if (a.dropout > 0.0f) drop(a, h, q0, i + r, own.end, bits, pr);
      }
      product(p + lo, ld, seen.end - lo, v + lo * width, width, o, width, width);
      for (int64_t r = 0; r < rows; ++r) {
        T* out = static_cast<T*>(a.o) + (q0 + i + r) * a.o_stride + h * V;
        for (int64_t d = 0; d < V; ++d) out[d] = o[r * width + d] * inverse[r];
      }
    }
  }

  // One head's share of what is summed over rows.
  struct HeadSums {
    T d_slope = 0, d_sink = 0;
  };

  // sums: one for each query head of the group. d_bias is added to.
  template <bool kFeatures>
  static void backward(const AttentionBackwardArgs& b, int64_t seq, int64_t kv, T* scratch,
                       HeadSums* sums) {
    const AttentionArgs& a = b.forward;
    const int64_t D = a.head_size, V = attention_v_head_size(a), width = padded(D > V ? D : V);
    const int64_t group = a.heads / a.kv_heads;
    const int64_t q0 = a.cu_q[seq], queries = a.cu_q[seq + 1] - q0;
    const int64_t k0 = a.cu_k[seq], keys = a.cu_k[seq + 1] - k0, ld = padded(keys);
    constexpr T kNone = -std::numeric_limits<T>::infinity();
    const T scale = kFeatures ? T(1) : static_cast<T>(a.scale);
    const T keep = T(1) / (T(1) - static_cast<T>(a.dropout));
    const bool rotates = kFeatures && a.rotary_base > 0.0f;
    T* k = scratch;
    T* k_t = k + ld * width;
    T* v_t = k_t + ld * width;
    T* d_k = v_t + ld * width;
    T* d_v = d_k + ld * width;
    T* q = d_v + ld * width;
    T* o = q + R * width;
    T* d_o = o + R * width;
    T* d_q = d_o + R * width;
    T* p = d_q + R * width;
    T* d_p = p + R * ld;
    T* kept = d_p + R * ld;  // p after dropout
    T* cap_slope = kept + R * ld;
    auto* bits = reinterpret_cast<uint32_t*>(cap_slope + ld);
    copy_rows(k, width, a.k, k0, a.k_stride, kv, D, keys, keys);
    copy_transposed(k_t, ld, a.k, k0, a.k_stride, kv, D, keys);
    copy_transposed(v_t, ld, a.v, k0, a.v_stride, kv, V, keys);
    if (rotates) rotate_heads(k, keys, width, 1, D, a.rotary_base, 0, 1);
    if (rotates) rotate_heads(k_t, keys, 1, ld, D, a.rotary_base, 0, 1);
    std::memset(d_k, 0, static_cast<size_t>(2 * ld * width) * sizeof(T));
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const HeadFeatures<T> features(a, seq, h);
      HeadSums& sum = sums[h - kv * group];
      const T* lse = static_cast<const T*>(a.lse) + h * a.q_rows + q0;
      for (int64_t i = 0; i < queries; i += R) {
        const int64_t rows = queries - i < R ? queries - i : R;
        const KeyRange seen = block_range<kFeatures>(a, features, i, rows, keys);
        const int64_t lo = seen.begin, cols = lo + (seen.end - lo + W - 1) / W * W;
        copy_rows(q, width, a.q, q0 + i, a.q_stride, h, D, rows, R);
        copy_rows(o, width, a.o, q0 + i, a.o_stride, h, V, rows, R);
        copy_rows(d_o, width, b.d_o, q0 + i, a.o_stride, h, V, rows, R);
        if (rotates) rotate_heads(q, rows, width, 1, D, a.rotary_base, features.aligned(i), 1);
        product(q, width, D, k_t + lo, ld, p + lo, ld, cols - lo);
        product(d_o, width, V, v_t + lo, ld, d_p + lo, ld, cols - lo);
        for (int64_t r = 0; r < R; ++r) {
          T* pr = p + r * ld;
          T* dr = d_p + r * ld;
          T* kr = kept + r * ld;
          KeyRange own{lo, lo};
          const bool sees = r < rows && lse[i + r] != kNone;
          if (sees) own = row_range<kFeatures>(a, features, i + r, keys);
          const T top = sees ? lse[i + r] : T(0);
          Vec deltas = {};
          for (int64_t d = 0; d < width; d += W)
            deltas += load(o + r * width + d) * load(d_o + r * width + d);
          T delta = 0;
          for (int64_t l = 0; l < W; ++l) delta += deltas[l];
          for (int64_t j = lo; j < own.begin; ++j) pr[j] = kNone;
          for (int64_t j = own.end > lo ? own.end : lo; j < cols; ++j) pr[j] = kNone;
          if (kFeatures && own.begin < own.end) features.score(i + r, own, pr, cap_slope);
          for (int64_t j = lo; j < cols; j += W) {
            const Vec e = exp_of(load(pr + j) * scale - top);
            store(pr + j, e);
            store(kr + j, e * keep);
          }
          if (a.dropout > 0.0f) drop(a, h, q0, i + r, own.end, bits, kr);
          // kept = p keep m, so d_s = kept d_p - p delta (times scale) needs no mask of its own.
          for (int64_t j = lo; j < cols; j += W)
            store(dr + j, (load(kr + j) * load(dr + j) - load(pr + j) * delta) * scale);
          if constexpr (kFeatures) {
            T* d_bias = static_cast<T*>(b.d_bias);
            if (d_bias)
              d_bias += seq * b.d_bias_sequence_stride + h * b.d_bias_head_stride +
                        (i + r) * b.d_bias_row_stride;
            T* d_slope = b.d_alibi_slopes ? &sum.d_slope : nullptr;
            features.unscore(i + r, own, cap_slope, dr, d_bias, d_slope);
            if (sees && a.sinks) sum.d_sink -= std::exp(features.sink() - top) * delta;
          }
        }
        product(d_p + lo, ld, seen.end - lo, k + lo * width, width, d_q, width, width);
        add_outer(d_k + lo * width, seen.end - lo, d_p + lo, ld, q, width);
        add_outer(d_v + lo * width, seen.end - lo, kept + lo, ld, d_o, width);
        if (rotates) rotate_heads(d_q, rows, width, 1, D, a.rotary_base, features.aligned(i), -1);
        for (int64_t r = 0; r < rows; ++r) {
          T* out = static_cast<T*>(b.d_q) + (q0 + i + r) * b.d_q_stride + h * D;
          std::memcpy(out, d_q + r * width, static_cast<size_t>(D) * sizeof(T));
        }
      }
    }
    if (rotates) rotate_heads(d_k, keys, width, 1, D, a.rotary_base, 0, -1);
    for (int64_t j = 0; j < keys; ++j) {
      std::memcpy(static_cast<T*>(b.d_k) + (k0 + j) * b.d_k_stride + kv * D, d_k + j * width,
                  static_cast<size_t>(D) * sizeof(T));
      std::memcpy(static_cast<T*>(b.d_v) + (k0 + j) * b.d_v_stride + kv * V, d_v + j * width,
                  static_cast<size_t>(V) * sizeof(T));
    }
  }
};

}  // namespace saturate::kernels
