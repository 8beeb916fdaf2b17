// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// Columns of a value: q, k and v may lie in one packed projection.
struct Slice {
  Value of;
  int64_t column = 0;
};

struct AttentionSpec {
  Slice q = {}, k = {}, v = {};
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  const int32_t* cu_q = nullptr;  // device memory, (sequences + 1)
  const int32_t* cu_k = nullptr;
  int64_t sequences = 0, max_q = 0, max_k = 0;
  bool causal = false;
  float dropout = 0.0f;
};

// Packed variable-length attention, scale 1/sqrt(head_size); see kernels/attention/attention.h.
// Returns (q rows, heads * head_size). q, k and v must together cover the columns of what they
// slice, and nothing else may read those values' gradients.
Value attention(Tape& tape, const AttentionSpec& spec);

// Rotates the heads in columns [column, column + heads * head_size) of x in place: returns an alias
// of x.
struct RotarySpec {
  int64_t heads = 0, head_size = 0;
  const int32_t* positions = nullptr;
  float base = 10000.0f;
};
Value rotary(Tape& tape, Slice x, const RotarySpec& spec);

}  // namespace saturate::ops
