// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::model {

// Added to every denominator, which is positive but may be tiny.
constexpr float kLinearAttentionEps = 1e-6f;

// Causal linear attention: attention whose weights are products of positive features, so that the
// past fits a state of fixed size per head.
//
//   o[i] = (sum_{j <= i} w[i][j] v[j]) / denominator[i]
//   denominator[i] = eps + sum_{j <= i} w[i][j],  w[i][j] = f(q[i]) . f(k[j]),  f(x) = elu(x) + 1
//
// for the rows i and j of one sequence and one head. The sums over j are those of a state
// S[d][c] = sum_j f(k[j])[d] v'[j][c] with v' = [v, 1], which takes in one token after the other:
// S is what generation keeps (LinearAttentionStepArgs), in place of all keys and values.
//
// Shapes    qkv (rows, 3 * heads * head_size) = [q | k | v]; o (rows, heads * head_size);
//           denominator (heads, rows); sequence s owns the rows [cu[s], cu[s + 1]) and may be
//           empty. Rows behind cu[sequences] get o = 0, denominator = 1 and zero gradients.
// Types     qkv, o and their gradients in dtype; denominator, features and all sums in
//           wide_of(dtype).
// Aliasing  none.
// Stream    enqueued on ctx.stream; the grid does not depend on the lengths (graph-capturable);
//           never synchronises.
// Order     bitwise equal run to run: one block takes one head of one sequence from end to end.
// Errors    invalid_argument, unsupported (no implementation fits), device.
// Cost      4 * head_size^2 flops a row and head forward, 8 backward, whatever the length. On a GPU
//           a sequence is one block for each head, so it is quick with many sequences and slow with
//           one.
// Source    Katharopoulos et al., arXiv:2006.16236; backward derived in docs/guide/mixers.md.
struct LinearAttentionArgs {
  const void* qkv = nullptr;
  void* o = nullptr;
  void* denominator = nullptr;
  const int32_t* cu = nullptr;  // (sequences + 1), device memory
  int64_t sequences = 0, rows = 0, heads = 0, head_size = 0;
  DType dtype = DType::f32;
};
void linear_attention_forward(const Context& ctx, const LinearAttentionArgs& args);

// Needs the forward's qkv, o and denominator. d_o (rows, heads * head_size); d_qkv as qkv, written
// throughout.
struct LinearAttentionBackwardArgs {
  LinearAttentionArgs forward;
  const void* d_o = nullptr;
  void* d_qkv = nullptr;
};
void linear_attention_backward(const Context& ctx, const LinearAttentionBackwardArgs& args);

// One token of each row: the state takes in its key and value, then o is as above. A row at
// position 0 starts with an empty state, whatever `state` holds. Rows with finished[r] != 0 get
// o = 0 and leave their state alone; null: none is finished.
//
// Shapes    qkv (rows, 3 * heads * head_size), o (rows, heads * head_size), positions and finished
//           (rows); state (rows, heads, head_size, head_size + 1) in wide_of(dtype).
struct LinearAttentionStepArgs {
  const void* qkv = nullptr;
  void* o = nullptr;
  void* state = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* finished = nullptr;
  int64_t rows = 0, heads = 0, head_size = 0;
  DType dtype = DType::f32;
};
void linear_attention_step(const Context& ctx, const LinearAttentionStepArgs& args);

// Bytes of the state of one row.
constexpr int64_t linear_attention_state_bytes(int64_t heads, int64_t head_size,
                                               DType dtype) noexcept {
  return heads * head_size * (head_size + 1) * static_cast<int64_t>(size_of(wide_of(dtype)));
}

}  // namespace saturate::model
