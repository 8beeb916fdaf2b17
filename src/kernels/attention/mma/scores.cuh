// SPDX-License-Identifier: Apache-2.0
// From a tile of products q.k on tensor cores to scores, with the features of a set that is a
// constant of the kernel. Within the set they are chosen at run time: a branch on a kernel's
// argument is the same for all threads and is taken once a tile.
//
// Positions i (query) and j (key) count from the start of their sequence. Scores here are times
// log2(e), for exp2.
#pragma once
#include <math_constants.h>

#include "kernels/attention/mma/device.cuh"
#include "kernels/attention/mma/features.h"

namespace saturate::kernels::attention {

// Whether a rectangle of the block mask holds a block to see, and whether it holds no other.
struct BlockView {
  bool any, all;
};

// kMay: the set, as in mma/features.h. It holds windows, alignments and sinks always.
template <uint32_t kMay>
struct MmaScores {
  static constexpr bool kCap = (kMay & kFeatureSoftCap) != 0, kBias = (kMay & kFeatureBias) != 0,
                        kAlibi = (kMay & kFeatureAlibi) != 0,
                        kMask = (kMay & kFeatureBlockMask) != 0;
  const AttentionArgs& a;
  int queries, keys, shift = 0, left, right;
  float slope2 = 0.0f;
  int64_t bias_at;
  const uint32_t* mask = nullptr;
  int mask_words = 0, block_size = 0;

  __device__ MmaScores(const AttentionArgs& args, int sequence, int head, int query_count,
                       int key_count)
      : a(args), queries(query_count), keys(key_count) {
    // No distance reaches the longer of the two, so a bound of that size is none, and sums of three
    // positions stay in 32 bits.
    const int64_t longest = max(queries, keys);
    left = static_cast<int>(min(a.window_left, longest));
    right = a.causal ? 0 : static_cast<int>(min(a.window_right, longest));
    if (a.alignment == CausalAlignment::bottom_right) shift = keys - queries;
    if (kAlibi && a.alibi_slopes) slope2 = static_cast<const float*>(a.alibi_slopes)[head] * kLog2e;
    bias_at = sequence * a.bias_sequence_stride + head * a.bias_head_stride;
    if (!masked()) return;
    block_size = static_cast<int>(a.block_size < longest ? a.block_size : longest + 1);
    mask_words = static_cast<int>(((a.max_k + a.block_size - 1) / a.block_size + 31) / 32);
    mask = a.block_mask + sequence * a.block_mask_sequence_stride + head * a.block_mask_head_stride;
  }

  __device__ bool masked() const { return kMask && a.block_mask != nullptr; }
  // Keys that queries first .. last see lie in [first_key, end_key); likewise queries.
  __device__ int first_key(int first) const { return max(0, first + shift - left); }
  __device__ int end_key(int last) const { return max(0, min(keys, last + shift + right + 1)); }
  __device__ int first_query(int first) const { return max(0, first - shift - right); }
  __device__ int end_query(int last) const { return max(0, min(queries, last - shift + left + 1)); }

  // Of the queries [i, i_end) and keys [j, j_end) that exist.
  __device__ BlockView blocks(int i, int i_end, int j, int j_end) const {
    BlockView view{false, true};
    const int m_end = (min(i_end, queries) - 1) / block_size,
              n_end = (min(j_end, keys) - 1) / block_size;
    for (int m = i / block_size; m <= m_end; ++m)
      for (int n = j / block_size; n <= n_end; n = (n | 31) + 1) {
        const int count = min(n_end, n | 31) - n + 1;
        const uint32_t wanted = count == 32 ? ~0u : (1u << count) - 1;
        const uint32_t bits =
            mask[static_cast<int64_t>(m) * mask_words + n / 32] >> (n % 32) & wanted;
        view.any |= bits != 0;
        view.all &= bits == wanted;
      }
    return view;
  }
  // Whether the block mask hides every key [j, j_end) from every query [i, i_end).
  __device__ bool hides(int i, int i_end, int j, int j_end) const {
    return masked() && !blocks(i, i_end, j, j_end).any;
  }
  __device__ bool block_bit(int m, int n) const {
    return mask[static_cast<int64_t>(m) * mask_words + n / 32] >> (n % 32) & 1u;
  }
  __device__ bool sees(int i, int j) const {
    if (i >= queries || j >= keys) return false;
    const int behind = i + shift - j;
    if (behind > left || -behind > right) return false;
    return !masked() || block_bit(i / block_size, j / block_size);
  }
  // Whether queries [i, i_end) may see a key of [j, j_end), as far as positions say, and whether
  // each sees all of them.
  __device__ bool meets(int i, int i_end, int j, int j_end) const {
    return i < queries && j < keys && j <= i_end - 1 + shift + right &&
           j_end - 1 >= i + shift - left;
  }
  __device__ bool sees_all(int i, int i_end, int j, int j_end) const {
    if (i_end > queries || j_end > keys) return false;
    if (j_end - 1 > i + shift + right || j < i_end - 1 + shift - left) return false;
    return !masked() || blocks(i, i_end, j, j_end).all;
  }

  __device__ float distance(int i, int j) const { return static_cast<float>(abs(i + shift - j)); }
};

// Query and key of element e of the accumulator of columns 8 c .. 8 c + 7, of a tile of 16 rows
// that begins at query i and key j.
template <bool kKeysInRows>
__device__ __forceinline__ int2 place_of(int i, int j, int c, int e) {
  const int row = lane() / 4 + e / 2 * 8, column = c * 8 + lane() % 4 * 2 + e % 2;
  return kKeysInRows ? make_int2(i + column, j + row) : make_int2(i + row, j + column);
}

// Adds the bias, of elements Bias, to a tile of scores.
template <class Bias, bool kKeysInRows, int kColumns, uint32_t kMay>
__device__ __forceinline__ void add_bias(const MmaScores<kMay>& f, float (&s)[kColumns / 8][4],
                                         int i, int j) {
  constexpr int kQueries = kKeysInRows ? kColumns : 16, kKeys = kKeysInRows ? 16 : kColumns;
  const AttentionArgs& a = f.a;
  const Bias* bias = static_cast<const Bias*>(a.bias) + f.bias_at;
  const int2 own = place_of<kKeysInRows>(i, j, 0, 0);
  const Bias* at = bias + own.x * a.bias_row_stride + own.y;
  if (i + kQueries > f.queries || j + kKeys > f.keys) {  // some elements do not exist
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 p = place_of<kKeysInRows>(i, j, c, e);
        if (p.x < f.queries && p.y < f.keys)
          s[c][e] += to_float(bias[p.x * a.bias_row_stride + p.y]) * kLog2e;
      }
    return;
  }
  if constexpr (kKeysInRows) {
    const Bias* next = at + a.bias_row_stride;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      s[c][0] += to_float(at[0]) * kLog2e;
      s[c][1] += to_float(next[0]) * kLog2e;
      s[c][2] += to_float(at[8]) * kLog2e;
      s[c][3] += to_float(next[8]) * kLog2e;
      at += 8 * a.bias_row_stride;
      next += 8 * a.bias_row_stride;
    }
  } else {
    const Bias* low = at + 8 * a.bias_row_stride;
    // Two keys in one access where every row begins at an even element.
    const bool pairs = ((a.bias_row_stride | f.bias_at) & 1) == 0 &&
                       reinterpret_cast<uintptr_t>(a.bias) % (2 * sizeof(Bias)) == 0;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      float upper[2], lower[2];
      if (pairs) {
        load(upper, at + c * 8);
        load(lower, low + c * 8);
      } else {
        upper[0] = to_float(at[c * 8]), upper[1] = to_float(at[c * 8 + 1]);
        lower[0] = to_float(low[c * 8]), lower[1] = to_float(low[c * 8 + 1]);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        s[c][e] += upper[e] * kLog2e;
        s[c][e + 2] += lower[e] * kLog2e;
      }
    }
  }
}

// The products of 16 rows and kColumns columns become scores, minus infinity where the query does
// not see the key. With kSlopes cap_slope gets the cap's derivative, two to a register (an error of
// 2^-11 beside that of the stored type); it is not written without a cap.
template <class T, bool kKeysInRows, bool kSlopes, int kColumns, uint32_t kMay>
__device__ __forceinline__ void to_scores(const MmaScores<kMay>& f, float (&s)[kColumns / 8][4],
                                          uint32_t (&cap_slope)[kSlopes ? kColumns / 8 : 1][2],
                                          int i, int j) {
  const AttentionArgs& a = f.a;
  if (f.kCap && a.soft_cap > 0.0f) {
    // tanh(x) = (1 - e^-2x) / (1 + e^-2x) for x >= 0; the error is a unit of 1, so of the cap.
    const float in = -2.0f * kLog2e * a.scale / a.soft_cap, out = a.soft_cap * kLog2e;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c) {
      float t[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float y = exp2_fast(in * fabsf(s[c][e]));
        t[e] = __fdividef(1.0f - y, 1.0f + y);
        s[c][e] = copysignf(t[e] * out, s[c][e]);
      }
      if constexpr (kSlopes) {
        cap_slope[c][0] = pack<__half>(1.0f - t[0] * t[0], 1.0f - t[1] * t[1]);
        cap_slope[c][1] = pack<__half>(1.0f - t[2] * t[2], 1.0f - t[3] * t[3]);
      }
    }
  } else {
    const float scale = a.scale * kLog2e;
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) s[c][e] *= scale;
  }
  if (f.kBias && a.bias != nullptr) {
    if (a.bias_dtype == DType::f32) {
      add_bias<float, kKeysInRows, kColumns>(f, s, i, j);
    } else {
      add_bias<T, kKeysInRows, kColumns>(f, s, i, j);
    }
  }
  if (f.kAlibi && f.slope2 != 0.0f) {
#pragma unroll
    for (int c = 0; c < kColumns / 8; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int2 at = place_of<kKeysInRows>(i, j, c, e);
        s[c][e] -= f.slope2 * f.distance(at.x, at.y);
      }
  }
  constexpr int kQueries = kKeysInRows ? kColumns : 16, kKeys = kKeysInRows ? 16 : kColumns;
  if (f.sees_all(i, i + kQueries, j, j + kKeys)) return;
#pragma unroll
  for (int c = 0; c < kColumns / 8; ++c)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int2 at = place_of<kKeysInRows>(i, j, c, e);
      if (!f.sees(at.x, at.y)) s[c][e] = -CUDART_INF_F;
    }
}

// s times the derivative that to_scores left.
template <int kColumns>
__device__ __forceinline__ void multiply_cap_slope(float (&s)[kColumns / 8][4],
                                                   const uint32_t (&cap_slope)[kColumns / 8][2]) {
#pragma unroll
  for (int c = 0; c < kColumns / 8; ++c)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      __half2 pair;
      memcpy(&pair, &cap_slope[c][r], 4);
      const float2 slope = __half22float2(pair);
      s[c][2 * r] *= slope.x;
      s[c][2 * r + 1] *= slope.y;
    }
}

}  // namespace saturate::kernels::attention
