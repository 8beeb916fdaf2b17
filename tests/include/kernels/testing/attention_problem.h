// SPDX-License-Identifier: Apache-2.0
// For the tests: one attention problem with random inputs and every feature of attention.h.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "kernels/attention/dropout.h"
#include "kernels/attention/impl.h"
#include "kernels/testing/attention_values.h"

namespace saturate::kernels {

// Which dimensions a bias has; the rest are shared.
enum class BiasShape { none, full, heads, sequences, keys };

struct FeatureSet {
  CausalAlignment alignment = CausalAlignment::top_left;
  int64_t window_left = kUnlimitedWindow, window_right = kUnlimitedWindow;
  float soft_cap = 0.0f, rotary_base = 0.0f;
  int64_t v_head_size = 0;
  BiasShape bias = BiasShape::none;
  bool bias_in_dtype = false;  // else f32
  double bias_hidden = 0;      // share of the elements that are minus infinity
  bool alibi = false, sinks = false;
  int64_t block_size = 0;
  bool block_per_head = false;
  bool fixed_slopes = false;  // no gradient of the slopes
};

struct Shape {
  const char* name;
  std::vector<int32_t> q_lengths, k_lengths;
  int64_t heads, kv_heads, head_size;
  bool causal = false;
  float dropout = 0.0f;
  bool packed = false;             // q, k and v interleaved in one projection
  int64_t q_tail = 0, k_tail = 0;  // rows after the last sequence
  FeatureSet features = {};
};

constexpr int64_t kGuard = 64;  // elements after every buffer that nobody may touch

// Where the arrays of one call lie.
struct Arrays {
  char *in, *o, *lse, *d_o, *d_in, *delta;      // in, d_in: q, k and v in one buffer
  char *bias, *per_head, *d_bias, *d_per_head;  // per_head: slopes, then sinks
  const uint32_t* block_mask;
  const int32_t *cu_q, *cu_k;
  const uint64_t* rng_state;
};

struct Problem {
  Shape shape;
  DType dtype;
  std::vector<int32_t> cu_q{0}, cu_k{0};
  AttentionBackwardArgs args;  // everything but the pointers
  int64_t k_at = 0, v_at = 0, input_size = 0, o_size = 0, lse_size = 0, bias_size = 0;
  Values input, d_o, bias, per_head;
  std::vector<uint32_t> block_mask;
  uint64_t rng_state[2] = {0x1234567890ABCDEFull, 41};

  Problem(const Shape& s, DType t) : shape(s), dtype(t) {
    for (int32_t n : s.q_lengths) cu_q.push_back(cu_q.back() + n);
    for (int32_t n : s.k_lengths) cu_k.push_back(cu_k.back() + n);
    AttentionArgs& a = args.forward;
    a.sequences = static_cast<int64_t>(s.q_lengths.size());
    a.heads = s.heads, a.kv_heads = s.kv_heads, a.head_size = s.head_size;
    a.q_rows = cu_q.back() + s.q_tail, a.k_rows = cu_k.back() + s.k_tail;
    for (int32_t n : s.q_lengths) a.max_q = std::max<int64_t>(a.max_q, n);
    for (int32_t n : s.k_lengths) a.max_k = std::max<int64_t>(a.max_k, n);
    a.v_head_size = s.features.v_head_size;
    place_rows();
    a.dtype = t, a.causal = s.causal;
    // As attention_forward() does for callers: the rate that is drawn.
    a.dropout = static_cast<float>(attention_dropout_least(s.dropout)) / 32768.0f;
    a.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(s.head_size)));
    a.rng.site = 7;
    input = random(input_size, 1);
    d_o = random(o_size, 2);
    make_features();
  }

  // In [-1, 1), as the type holds it.
  Values random(int64_t n, uint64_t stream) const { return random(n, stream, dtype); }
  static Values random(int64_t n, uint64_t stream, DType type) {
    Values v(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = rounded(random_block(99, stream, 0, i).x[0] * 0x1p-31 - 1, type);
    return v;
  }

  // The arguments with every pointer set; elements of `bytes` bytes in q, k, v and of `wide` bytes
  // in what is kept in wide_of(dtype) (8 both for the reference).
  AttentionBackwardArgs at(size_t bytes, size_t wide, const Arrays& m) const {
    AttentionBackwardArgs b = args;
    AttentionArgs& a = b.forward;
    const size_t k_bytes = static_cast<size_t>(k_at) * bytes,
                 v_bytes = static_cast<size_t>(v_at) * bytes;
    a.q = m.in, a.k = m.in + k_bytes, a.v = m.in + v_bytes;
    a.o = m.o, a.lse = m.lse, b.d_o = m.d_o, b.delta = m.delta;
    b.d_q = m.d_in, b.d_k = m.d_in + k_bytes, b.d_v = m.d_in + v_bytes;
    a.cu_q = m.cu_q, a.cu_k = m.cu_k, a.rng.state = m.rng_state;
    const FeatureSet& f = shape.features;
    const size_t head_bytes = static_cast<size_t>(a.heads) * wide;
    if (f.bias != BiasShape::none) a.bias = m.bias, b.d_bias = m.d_bias;
    if (f.alibi) a.alibi_slopes = m.per_head;
    if (f.alibi && !f.fixed_slopes) b.d_alibi_slopes = m.d_per_head;
    if (f.sinks) a.sinks = m.per_head + head_bytes, b.d_sinks = m.d_per_head + head_bytes;
    if (f.block_size > 0) a.block_mask = m.block_mask;
    return b;
  }

  // Arguments that say what fits: the pointers are set where they will be, but point nowhere.
  AttentionBackwardArgs with_any_pointers() const {
    char* any = reinterpret_cast<char*>(uintptr_t{1} << 20);
    const auto* offsets = reinterpret_cast<const int32_t*>(any);
    return at(
        0, 0,
        {any, any, any, any, any, any, any, any, any, any, reinterpret_cast<const uint32_t*>(any),
         offsets, offsets + 1, reinterpret_cast<const uint64_t*>(any)});
  }

 private:
  void place_rows() {
    AttentionArgs& a = args.forward;
    const int64_t D = a.head_size, V = attention_v_head_size(a);
    const int64_t q_width = a.heads * D, k_width = a.kv_heads * D, v_width = a.kv_heads * V;
    a.q_stride = a.k_stride = a.v_stride = q_width + k_width + v_width;
    k_at = q_width, v_at = q_width + k_width, input_size = a.q_rows * a.q_stride;
    if (!shape.packed) {
      a.q_stride = q_width + 8, a.k_stride = k_width, a.v_stride = v_width + 16;
      k_at = a.q_rows * a.q_stride, v_at = k_at + a.k_rows * a.k_stride;
      input_size = v_at + a.k_rows * a.v_stride;
    }
    a.o_stride = a.heads * V + 8;
    o_size = a.q_rows * a.o_stride;
    lse_size = a.heads * a.q_rows;
    args.d_q_stride = a.q_stride, args.d_k_stride = a.k_stride, args.d_v_stride = a.v_stride;
  }

  void make_features() {
    AttentionArgs& a = args.forward;
    const FeatureSet& f = shape.features;
    a.alignment = f.alignment, a.window_left = f.window_left, a.window_right = f.window_right;
    a.soft_cap = f.soft_cap, a.rotary_base = f.rotary_base;
    per_head = random(2 * a.heads, 4, DType::f32);
    for (int64_t h = 0; h < a.heads; ++h) per_head[h] = 0.05 + 0.1 * std::fabs(per_head[h]);
    for (double& x : per_head) x = rounded(x, DType::f32);
    if (f.bias != BiasShape::none) make_bias();
    if (f.block_size > 0) make_block_mask();
  }

  void make_bias() {
    AttentionArgs& a = args.forward;
    const FeatureSet& f = shape.features;
    a.bias_dtype = f.bias_in_dtype ? dtype : DType::f32;
    const bool rows = f.bias == BiasShape::full || f.bias == BiasShape::heads;
    const bool heads = rows;
    const bool sequences = f.bias != BiasShape::heads && f.bias != BiasShape::keys;
    int64_t size = a.max_k + 3;  // a gap after each row
    if (rows) a.bias_row_stride = size, size *= a.max_q;
    if (heads) a.bias_head_stride = size, size *= a.heads;
    if (sequences) a.bias_sequence_stride = size, size *= std::max<int64_t>(a.sequences, 1);
    bias_size = size;
    args.d_bias_row_stride = a.bias_row_stride, args.d_bias_head_stride = a.bias_head_stride;
    args.d_bias_sequence_stride = a.bias_sequence_stride;
    bias = random(size, 3, a.bias_dtype);
    const Values dice = random(size, 5, DType::f32);
    for (size_t i = 0; i < bias.size(); ++i)
      if (dice[i] < 2 * f.bias_hidden - 1) bias[i] = -std::numeric_limits<double>::infinity();
  }

  // About two blocks in three may be seen.
  void make_block_mask() {
    AttentionArgs& a = args.forward;
    const FeatureSet& f = shape.features;
    a.block_size = f.block_size;
    const int64_t rows = (a.max_q + f.block_size - 1) / f.block_size;
    const int64_t head_words = rows * attention_block_mask_words(a);
    a.block_mask_head_stride = f.block_per_head ? head_words : 0;
    a.block_mask_sequence_stride = f.block_per_head ? head_words * a.heads : head_words;
    const int64_t words = a.block_mask_sequence_stride * std::max<int64_t>(a.sequences, 1);
    for (int64_t w = 0; w < words; ++w) {
      const Random4 r = random_block(99, 6, 0, static_cast<uint64_t>(w));
      block_mask.push_back(r.x[0] | (r.x[1] & r.x[2]));
    }
  }
};

}  // namespace saturate::kernels
