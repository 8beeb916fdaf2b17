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

#include "kernels/attention/attention.h"

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
  SAT_INLINE void drop(const AttentionArgs& a, int64_t h, int64_t i, int64_t keys, uint32_t* bits,
                       T* p) {
    const uint64_t first = static_cast<uint64_t>(h * a.q_rows + i) << 14;  // 2^16 elements in fours
    const uint32_t threshold = dropout_threshold(a.dropout);
    const uint64_t seed = a.rng.state[0], step = a.rng.state[1];
    const uint32_t op = a.rng.op;
    for (int64_t b = 0; b < (keys + 3) / 4; ++b) {
      const Random4 r = random_block(seed, step, op, first + static_cast<uint64_t>(b));
      for (int w = 0; w < 4; ++w) bits[4 * b + w] = r.x[w];
    }
    for (int64_t j = 0; j < keys; ++j) p[j] = bits[j] >= threshold ? p[j] : T(0);
  }

  // Elements of 64-byte aligned scratch that one thread needs for sequences of up to max_k keys.
  static int64_t scratch_elements(int64_t max_k, int64_t head_size) {
    const int64_t keys = padded(max_k), width = padded(head_size);
    // Backward, the larger: k and v in three panels, sums of d_k and d_v; then blocks of query
    // rows, four by head size and three by keys, and a row of random numbers.
    return 5 * keys * width + R * (4 * width + 3 * keys) + keys;
  }

  static void forward(const AttentionArgs& a, int64_t seq, int64_t h, T* scratch) {
    const int64_t D = a.head_size, width = padded(D), kv = h / (a.heads / a.kv_heads);
    const int64_t q0 = a.cu_q[seq], queries = a.cu_q[seq + 1] - q0;
    const int64_t k0 = a.cu_k[seq], keys = a.cu_k[seq + 1] - k0, ld = padded(keys);
    const T scale = static_cast<T>(a.scale), keep = T(1) / (T(1) - static_cast<T>(a.dropout));
    T* k_t = scratch;
    T* v = k_t + ld * width;
    T* q = v + ld * width;
    T* o = q + R * width;
    T* p = o + R * width;
    auto* bits = reinterpret_cast<uint32_t*>(p + R * ld);
    T* lse = static_cast<T*>(a.lse) + h * a.q_rows + q0;
    if (queries > 0 && keys > 0) {
      copy_transposed(k_t, ld, a.k, k0, a.k_stride, kv, D, keys);
      copy_rows(v, width, a.v, k0, a.v_stride, kv, D, keys, keys);
    }
    for (int64_t i = 0; i < queries; i += R) {
      const int64_t rows = queries - i < R ? queries - i : R;
      // Keys that the block's last row sees, in whole vectors.
      const int64_t seen = a.causal && i + rows < keys ? i + rows : keys;
      const int64_t cols = (seen + W - 1) / W * W;
      copy_rows(q, width, a.q, q0 + i, a.q_stride, h, D, rows, R);
      product(q, width, D, k_t, ld, p, ld, cols);
      T inverse[R] = {};
      for (int64_t r = 0; r < rows; ++r) {
        T* pr = p + r * ld;
        const int64_t own = a.causal && i + r + 1 < keys ? i + r + 1 : keys;
        for (int64_t j = own; j < cols; ++j) pr[j] = -std::numeric_limits<T>::infinity();
        Vec tops = Vec{} - std::numeric_limits<T>::infinity(), sums = {};
        for (int64_t j = 0; j < cols; j += W) {
          const Vec s = load(pr + j);
          tops = s > tops ? s : tops;
        }
        T top = tops[0], sum = 0;
        for (int64_t l = 1; l < W; ++l) top = tops[l] > top ? tops[l] : top;
        for (int64_t j = 0; j < cols; j += W) {
          const Vec e = exp_of((load(pr + j) - top) * scale);
          sums += e;
          store(pr + j, e);
        }
        for (int64_t l = 0; l < W; ++l) sum += sums[l];
        lse[i + r] = own > 0 ? top * scale + std::log(sum) : -std::numeric_limits<T>::infinity();
        inverse[r] = own > 0 ? keep / sum : T(0);
        if (a.dropout > 0.0f) drop(a, h, q0 + i + r, own, bits, pr);
      }
      product(p, ld, seen, v, width, o, width, width);
      for (int64_t r = 0; r < rows; ++r) {
        T* out = static_cast<T*>(a.o) + (q0 + i + r) * a.o_stride + h * D;
        for (int64_t d = 0; d < D; ++d) out[d] = o[r * width + d] * inverse[r];
      }
    }
  }

  static void backward(const AttentionBackwardArgs& b, int64_t seq, int64_t kv, T* scratch) {
    const AttentionArgs& a = b.forward;
    const int64_t D = a.head_size, width = padded(D), group = a.heads / a.kv_heads;
    const int64_t q0 = a.cu_q[seq], queries = a.cu_q[seq + 1] - q0;
    const int64_t k0 = a.cu_k[seq], keys = a.cu_k[seq + 1] - k0, ld = padded(keys);
    const T scale = static_cast<T>(a.scale), keep = T(1) / (T(1) - static_cast<T>(a.dropout));
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
    auto* bits = reinterpret_cast<uint32_t*>(kept + R * ld);
    copy_rows(k, width, a.k, k0, a.k_stride, kv, D, keys, keys);
    copy_transposed(k_t, ld, a.k, k0, a.k_stride, kv, D, keys);
    copy_transposed(v_t, ld, a.v, k0, a.v_stride, kv, D, keys);
    std::memset(d_k, 0, static_cast<size_t>(2 * ld * width) * sizeof(T));
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      const T* lse = static_cast<const T*>(a.lse) + h * a.q_rows + q0;
      for (int64_t i = 0; i < queries; i += R) {
        const int64_t rows = queries - i < R ? queries - i : R;
        const int64_t seen = a.causal && i + rows < keys ? i + rows : keys;
        const int64_t cols = (seen + W - 1) / W * W;
        copy_rows(q, width, a.q, q0 + i, a.q_stride, h, D, rows, R);
        copy_rows(o, width, a.o, q0 + i, a.o_stride, h, D, rows, R);
        copy_rows(d_o, width, b.d_o, q0 + i, a.o_stride, h, D, rows, R);
        product(q, width, D, k_t, ld, p, ld, cols);
        product(d_o, width, D, v_t, ld, d_p, ld, cols);
        for (int64_t r = 0; r < R; ++r) {
          T* pr = p + r * ld;
          T* dr = d_p + r * ld;
          T* kr = kept + r * ld;
          const int64_t own = r >= rows ? 0 : a.causal && i + r + 1 < keys ? i + r + 1 : keys;
          const T top = r < rows && own > 0 ? lse[i + r] : T(0);
          Vec deltas = {};
          for (int64_t d = 0; d < width; d += W)
            deltas += load(o + r * width + d) * load(d_o + r * width + d);
          T delta = 0;
          for (int64_t l = 0; l < W; ++l) delta += deltas[l];
          for (int64_t j = own; j < cols; ++j) pr[j] = -std::numeric_limits<T>::infinity();
          for (int64_t j = 0; j < cols; j += W) {
            const Vec e = exp_of(load(pr + j) * scale - top);
            store(pr + j, e);
            store(kr + j, e * keep);
          }
          if (a.dropout > 0.0f) drop(a, h, q0 + i + r, own, bits, kr);
          // kept = p keep m, so d_s = kept d_p - p delta (times scale) needs no mask of its own.
          for (int64_t j = 0; j < cols; j += W)
            store(dr + j, (load(kr + j) * load(dr + j) - load(pr + j) * delta) * scale);
        }
        product(d_p, ld, seen, k, width, d_q, width, width);
        add_outer(d_k, seen, d_p, ld, q, width);
        add_outer(d_v, seen, kept, ld, d_o, width);
        for (int64_t r = 0; r < rows; ++r) {
          T* out = static_cast<T*>(b.d_q) + (q0 + i + r) * b.d_q_stride + h * D;
          std::memcpy(out, d_q + r * width, static_cast<size_t>(D) * sizeof(T));
        }
      }
    }
    for (int64_t j = 0; j < keys; ++j) {
      std::memcpy(static_cast<T*>(b.d_k) + (k0 + j) * b.d_k_stride + kv * D, d_k + j * width,
                  static_cast<size_t>(D) * sizeof(T));
      std::memcpy(static_cast<T*>(b.d_v) + (k0 + j) * b.d_v_stride + kv * D, d_v + j * width,
                  static_cast<size_t>(D) * sizeof(T));
    }
  }
};

}  // namespace saturate::kernels
