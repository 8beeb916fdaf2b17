// SPDX-License-Identifier: Apache-2.0
// From a product q.k to a score in the plain kernels: two variants, so that calls without features
// pay for none.
//
// Positions i (query) and j (key) count from the start of their sequence.
#pragma once
#include <math_constants.h>

#include "kernels/attention/plain/device.cuh"

namespace saturate::kernels::attention {

template <bool kFeatures>
struct PlainScores;

// Causal order alone.
template <>
struct PlainScores<false> {
  int queries, keys;
  bool causal;
  float scale, scale2;

  __device__ PlainScores(const AttentionArgs& a, int, int, int query_count, int key_count)
      : queries(query_count),
        keys(key_count),
        causal(a.causal),
        scale(a.scale),
        scale2(a.scale * kLog2e) {}

  // Keys that queries first .. last see lie in [first_key, end_key); likewise queries.
  __device__ int first_key(int) const { return 0; }
  __device__ int end_key(int last) const { return causal ? min(keys, last + 1) : keys; }
  __device__ int first_query(int first) const { return causal ? first : 0; }
  __device__ int end_query(int) const { return queries; }
  __device__ bool hides(int, int, int, int) const { return false; }
  __device__ bool sees(int i, int j) const { return i < queries && j < keys && !(causal && j > i); }
  // Times log2(e), for exp2: the machine's exponential.
  __device__ float score2(int, int, float product) const { return product * scale2; }
  __device__ float score(int, int, float product, float& cap_slope) const {
    cap_slope = 1.0f;
    return product * scale;
  }
  __device__ float distance(int, int) const { return 0.0f; }
  __device__ int aligned(int i) const { return i; }
  __device__ float sink() const { return -CUDART_INF_F; }
};

// Everything that attention.h offers, chosen at run time.
template <>
struct PlainScores<true> {
  const AttentionArgs& a;
  int queries, keys, shift = 0, left, right;
  float slope = 0.0f, sink_score;
  int64_t bias_at;
  const uint32_t* mask = nullptr;
  int mask_words = 0, block_size = 0;

  __device__ PlainScores(const AttentionArgs& args, int sequence, int head, int query_count,
                         int key_count)
      : a(args), queries(query_count), keys(key_count) {
    constexpr int64_t kFar = int64_t{1} << 30;  // beyond any sequence; sums stay in 32 bits
    left = static_cast<int>(a.window_left < kFar ? a.window_left : kFar);
    right = a.causal ? 0 : static_cast<int>(a.window_right < kFar ? a.window_right : kFar);
    if (a.alignment == CausalAlignment::bottom_right) shift = keys - queries;
    if (a.alibi_slopes) slope = static_cast<const float*>(a.alibi_slopes)[head];
    sink_score = a.sinks ? static_cast<const float*>(a.sinks)[head] : -CUDART_INF_F;
    bias_at = sequence * a.bias_sequence_stride + head * a.bias_head_stride;
    if (a.block_mask == nullptr) return;
    block_size = static_cast<int>(a.block_size);
    const int64_t blocks = (a.max_k + block_size - 1) / block_size;
    mask_words = static_cast<int>((blocks + 31) / 32);
    mask = a.block_mask + sequence * a.block_mask_sequence_stride + head * a.block_mask_head_stride;
  }

  __device__ int aligned(int i) const { return i + shift; }
  __device__ int first_key(int first) const { return max(0, aligned(first) - left); }
  __device__ int end_key(int last) const {
    const int64_t end = int64_t{aligned(last)} + right + 1;
    return static_cast<int>(end < 0 ? 0 : end < keys ? end : keys);
  }
  __device__ int first_query(int first) const { return max(0, first - shift - right); }
  __device__ int end_query(int last) const {
    const int64_t end = int64_t{last} - shift + left + 1;
    return static_cast<int>(end < 0 ? 0 : end < queries ? end : queries);
  }
  __device__ bool block_bit(int m, int n) const {
    return mask[static_cast<int64_t>(m) * mask_words + n / 32] >> (n % 32) & 1u;
  }
  // Whether the block mask hides every key [j, j_end) from every query [i, i_end).
  __device__ bool hides(int i, int i_end, int j, int j_end) const {
    if (mask == nullptr) return false;
    for (int m = i / block_size; m * block_size < min(i_end, queries); ++m)
      for (int n = j / block_size; n * block_size < min(j_end, keys); ++n)
        if (block_bit(m, n)) return false;
    return true;
  }
  __device__ bool sees(int i, int j) const {
    if (i >= queries || j >= keys) return false;
    const int64_t behind = int64_t{aligned(i)} - j;
    if (behind > left || -behind > right) return false;
    return mask == nullptr || block_bit(i / block_size, j / block_size);
  }
  __device__ float bias(int i, int j) const {
    const int64_t at = bias_at + i * a.bias_row_stride + j;
    if (a.bias_dtype == DType::f32) return static_cast<const float*>(a.bias)[at];
    if (a.bias_dtype == DType::f16) return to_float(static_cast<const __half*>(a.bias)[at]);
    return to_float(static_cast<const __nv_bfloat16*>(a.bias)[at]);
  }
  __device__ float distance(int i, int j) const {
    const int64_t behind = int64_t{aligned(i)} - j;
    return static_cast<float>(behind < 0 ? -behind : behind);
  }
  // Of a key that the query sees; minus infinity if the bias hides it.
  __device__ float score(int i, int j, float product, float& cap_slope) const {
    float s = product * a.scale;
    cap_slope = 1.0f;
    if (a.soft_cap > 0.0f) {
      const float t = tanhf(s / a.soft_cap);
      s = a.soft_cap * t;
      cap_slope = 1.0f - t * t;
    }
    if (a.bias != nullptr) s += bias(i, j);
    if (slope != 0.0f) s -= slope * distance(i, j);
    return s;
  }
  __device__ float score2(int i, int j, float product) const {
    float unused;
    return score(i, j, product, unused) * kLog2e;
  }
  __device__ float sink() const { return sink_score; }
};

// What of `head_size` is given by v and o.
__device__ __forceinline__ int value_size(const AttentionArgs& a) {
  return static_cast<int>(a.v_head_size == 0 ? a.head_size : a.v_head_size);
}

// Rotates the first `rows` rows of a tile by their positions first, first + 1, ... (sign -1: back).
// All threads call it; the tile must be written and is written when it returns.
template <class Tile>
__device__ void rotate_tile(float* tile, int rows, int head_size, float base, int first,
                            float sign) {
  const int half = head_size / 2;
  const float turn = -log2f(base) / static_cast<float>(half);
  __syncthreads();  // the tile has been written
  for (int e = static_cast<int>(threadIdx.x); e < rows * half; e += kPlainThreads) {
    const int r = e / half, d = e % half;
    float s, c;
    sincosf(static_cast<float>(first + r) * exp2f(turn * static_cast<float>(d)), &s, &c);
    float& low = tile[r * Tile::kLd + d];
    float& high = tile[r * Tile::kLd + d + half];
    const float x = low, y = high;
    low = x * c - y * s * sign;
    high = y * c + x * s * sign;
  }
  __syncthreads();  // the tile is rotated
}

// A tile of q or k rows, rotated where the call asks for it.
template <bool kFeatures, class T, class Tile>
__device__ void load_tile(float* tile, const AttentionArgs& a, const T* src, int64_t stride,
                          int rows, int first_position) {
  const int D = static_cast<int>(a.head_size);
  Tile::load(tile, src, stride, rows, D);
  if constexpr (kFeatures)
    if (a.rotary_base > 0.0f) rotate_tile<Tile>(tile, rows, D, a.rotary_base, first_position, 1.0f);
}

}  // namespace saturate::kernels::attention
