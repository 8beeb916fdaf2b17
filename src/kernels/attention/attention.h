// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

// Attention over packed sequences of different lengths; the score matrix never reaches memory.
//
//   o[i] = sum_j drop(p[i][j]) v[j],  p[i][j] = exp(scale * q[i].k[j] - lse[i])
//
// for query row i and key rows j of the same sequence and head. causal: j's position <= i's
// position, both counted from the start of their sequence (self-attention).
//
// Shapes    sequence s owns query rows [cu_q[s], cu_q[s+1]) and key rows [cu_k[s], cu_k[s+1]);
// either
//           may be empty. Rows are laid out (row, head, head_size) with a stride in elements
//           between rows, so that q, k and v may lie in one packed projection. Query head h reads
//           key head h / (heads / kv_heads). lse (heads, q_rows) in wide_of(dtype). max_q, max_k
//           bound every sequence's length: the grid depends on them, never on the lengths.
// Rows outside every sequence (cu_q[sequences] .. q_rows; likewise k_rows) get o = 0, lse = 0 and
// zero
//           gradients; a query with no key gets o = 0, lse = -infinity.
// Types     q, k, v, o and their gradients in dtype; softmax and sums in fp32 (f64 for f64).
// Dropout   probability p on p[i][j] after the softmax, kept ones scaled by 1/(1-p); the bits come
// from
//           random_block(seed, micro_step, rng.op, block) of element (h * q_rows + i) * 2^16 +
//           local j (j counted from the sequence's first key): block = element / 4, word = element
//           % 4.
// Aliasing  none.
// Stream    enqueued on ctx.stream; grid independent of lengths (graph-capturable); never
// synchronises. Order     bitwise equal run to run on one device, forward and backward (no
// atomics). Errors    invalid_argument, unsupported (no implementation fits), device. Cost forward
// 4 q k D flops a head for each sequence, backward 2.5 times that (half if causal). Source    Dao
// et al., arXiv:2205.14135 and Dao, arXiv:2307.08691.
struct AttentionArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  void* lse = nullptr;
  const int32_t* cu_q = nullptr;  // (sequences + 1), device memory
  const int32_t* cu_k = nullptr;
  int64_t sequences = 0, heads = 0, kv_heads = 0, head_size = 0;
  int64_t q_rows = 0, k_rows = 0;
  int64_t max_q = 0, max_k = 0;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, o_stride = 0;
  DType dtype = DType::f32;
  bool causal = false;
  float scale = 1.0f;
  float dropout = 0.0f;
  RngRef rng = {};
};

// Needs the forward's inputs, o and lse, and d_o (stride o_stride).
struct AttentionBackwardArgs {
  AttentionArgs forward;
  const void* d_o = nullptr;
  void* d_q = nullptr;  // strides d_q_stride, d_k_stride, d_v_stride
  void* d_k = nullptr;
  void* d_v = nullptr;
  int64_t d_q_stride = 0, d_k_stride = 0, d_v_stride = 0;
  void* delta = nullptr;  // scratch (heads, q_rows) in wide_of(dtype)
};

void attention_forward(const Context& ctx, const AttentionArgs& args);
void attention_backward(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace saturate::kernels
