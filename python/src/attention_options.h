// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "kernels/attention/attention.h"
#include "tensor.h"

namespace saturate::python {

// What attention() takes beside its arrays: where sequences begin, and the features of
// kernels/attention/attention.h. The arrays stay alive with the options.
struct AttentionOptions {
  int64_t sequences = 1;             // read only without cu_q, cu_k
  std::optional<Tensor> cu_q, cu_k;  // (sequences + 1) i32
  int64_t max_q = 0, max_k = 0;      // longest sequence, or more
  bool causal = false, bottom_right = false;
  int64_t window_left = -1, window_right = -1;  // -1: no bound
  float scale = 1.0f, soft_cap = 0.0f, rotary_base = 0.0f, dropout = 0.0f;
  std::optional<Tensor> rng;           // (4) i32: seed and step, low halves first
  std::optional<Tensor> bias;          // (sequences or 1, heads or 1, max_q or 1, max_k)
  std::optional<Tensor> alibi_slopes;  // (heads)
  std::optional<Tensor> sinks;         // (heads)
  std::optional<Tensor> block_mask;    // (sequences or 1, heads or 1, blocks, words) i32
  int64_t block_size = 0;
  bool deterministic = true;
};

void bind_attention_options(nanobind::module_& m);

// Elements between rows of a (rows, heads, head size) array; refuses other layouts.
int64_t row_stride(const char* op, const char* name, const Tensor& t);

// The kernel's arguments. `options` keeps the memory of its arrays. Errors: invalid_argument.
kernels::AttentionArgs attention_args(const char* op, const Tensor& q, const Tensor& k,
                                      const Tensor& v, const Tensor& o, const Tensor& lse,
                                      const AttentionOptions& options);

// Strides of a (sequences or 1, heads or 1, rows or 1, keys) array, 0 along a dimension of size 1.
struct SharedStrides {
  int64_t sequence, head, row;
};
SharedStrides shared_strides(const Tensor& t);

}  // namespace saturate::python
