// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// Device arrays of a generation step, and the cache of one layer; kernels/decode/cached_attention.h
// says what they hold.
struct CachedAttentionSpec {
  int64_t heads = 0, kv_heads = 0, head_size = 0;
  int64_t max_positions = 0;
  void* cache = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* starts = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* finished = nullptr;
  const int32_t* lengths = nullptr;
  float scale = 0.0f;     // 0: 1/sqrt(head_size)
  float soft_cap = 0.0f;  // 0: none
  int64_t window = 0;     // 0: all positions
  Value bias = {};        // (heads, max_positions) in the wide type, or none
};

// One position of causal self-attention for every row, with its history from the cache. For
// inference only: there is no backward pass.
//
// Shapes    qkv (rows, (heads + 2 kv_heads) * head_size), one token a row, or with lengths
//           (rows, heads * head_size); returns (rows, heads * head_size).
// Errors    invalid_argument when the operation runs, as the kernel says; another width of qkv or a
//           tape for training is a bug of the model's code (SAT_ASSERT).
// Kernel    kernels/decode/cached_attention.h
Value cached_attention(Tape& tape, Value qkv, const CachedAttentionSpec& spec);

}  // namespace saturate::ops
