// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <vector>

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
  float scale = 0.0f;     // of scores; 0: 1/sqrt(head_size)
  float soft_cap = 0.0f;  // of scores, as the kernel says; 0: none
  int64_t window = 0;     // keys that a query sees, the one beside it counted; 0: all
  // What a key adds to its score: (heads, max_q * max_k) in the wide type; none: nothing. For inference
  // only.
  Value bias = {};
  float dropout = 0.0f;
  // Whether the last query of a sequence stands at its last key, rather than the first at the first.
  bool ends_meet = false;
  // Row of the matrix of all ranks that q's first row is, for masks; else the tape says.
  std::optional<int64_t> first_row = {};
  double flops = 0;  // what estimates count; 0: by rows and sequences of this call
  // Where ranks compute heads each: number of the first one here, and of all; 0: `heads` are all.
  int64_t first_head = 0, all_heads = 0;
};

// Packed variable-length attention.
//
// Shapes    q: heads * head_size columns of a value, k and v: kv_heads * head_size; returns
//           (q rows, heads * head_size). q, k and v must together cover the columns of the values
//           they slice.
// Backward  one gradient for each distinct value among q, k and v, as that value lies. Nothing else
//           may contribute to those gradients. Keeps q, k, v, the result and lse until then.
// Errors    invalid_argument when the operation runs, as the kernel says; a value with another
//           contribution to its gradient is a bug of the model's code (SAT_ASSERT).
// Kernel    kernels/attention/attention.h
Value attention(Tape& tape, const AttentionSpec& spec);

// Several of them as one operation, with the masks of one: parts of the rows.
//
// Shapes    of each part as above; returns their results in order.
// Backward  as above; no value is sliced by two parts.
// Errors    as above.
// Kernel    kernels/attention/attention.h
std::vector<Value> attention(Tape& tape, const std::vector<AttentionSpec>& parts);

// Multiplications and additions of the forward pass on so many rows, by the mean length of a sequence.
double attention_flops(const AttentionSpec& spec, int64_t q_rows, int64_t k_rows);

struct RotarySpec {
  int64_t heads = 0, head_size = 0;
  const int32_t* positions = nullptr;
  std::vector<RowRun> runs = {};  // which of the positions are those of x's rows; none: the first
  float base = 10000.0f;
  float factor = 1.0f, low = 1.0f, high = 4.0f;  // slower, as the kernel says; 1: not
  int64_t original = 0;
};
// Rotates the heads in columns [column, column + heads * head_size) of x by their row's position.
//
// Shapes    x (rows, at least column + heads * head_size); returns an alias of it: in place.
// Backward  the inverse rotation of the gradient, in place too.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/rotary/rotary.h
Value rotary(Tape& tape, Slice x, const RotarySpec& spec);

}  // namespace saturate::ops
