// SPDX-License-Identifier: Apache-2.0
// What the kernels of attention in eight bits get: the call, and where its scratch holds what.
#pragma once
#include "kernels/attention/int8/int8.h"

namespace saturate::kernels {

struct Int8Problem {
  AttentionArgs a;
  int8_t* q;        // (q_rows, heads, head_size)
  int8_t* k;        // (k_rows, kv_heads, head_size)
  float* q_scales;  // (heads, q_rows)
  float* k_scales;  // (kv_heads, k_blocks)
  float* means;     // (sequences, kv_heads, head_size)
  int64_t k_blocks;
  int64_t bytes;  // of the whole scratch
};

// Blocks of keys of all sequences, no more than these whatever their lengths: sequence s starts at
// block first_row / 64 + s.
inline int64_t int8_key_blocks(const AttentionArgs& a) noexcept {
  return a.k_rows / kInt8Keys + a.sequences;
}

inline Int8Problem int8_problem(const AttentionArgs& a, void* scratch) noexcept {
  int64_t at = 0;
  const auto take = [&](int64_t bytes) {
    char* const here = static_cast<char*>(scratch) + at;
    at += (bytes + 255) / 256 * 256;
    return here;
  };
  Int8Problem p{};
  p.a = a;
  p.k_blocks = int8_key_blocks(a);
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  p.q = reinterpret_cast<int8_t*>(take(a.q_rows * a.heads * a.head_size));
  p.k = reinterpret_cast<int8_t*>(take(a.k_rows * a.kv_heads * a.head_size));
  p.q_scales = reinterpret_cast<float*>(take(a.heads * a.q_rows * kFloat));
  p.k_scales = reinterpret_cast<float*>(take(a.kv_heads * p.k_blocks * kFloat));
  p.means = reinterpret_cast<float*>(take(a.sequences * a.kv_heads * a.head_size * kFloat));
  p.bytes = at;
  return p;
}

// q, k, scales and means of the problem, and the forward pass over them. The arguments fit.
void attention_int8_prepare_cuda(const Context& ctx, const Int8Problem& p);
void attention_forward_int8_cuda(const Context& ctx, const Int8Problem& p);

}  // namespace saturate::kernels
