// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/error.h"
#include "base/philox.h"
#include "kernels/dispatch.h"
#include "runtime/context.h"

namespace saturate::kernels {

// Where query i of a sequence stands among its keys (the aligned position i') when the sequence has
// `queries` query rows and `keys` key rows.
enum class CausalAlignment : uint8_t {
  top_left,     // i' = i: query 0 stands at key 0
  bottom_right  // i' = i + keys - queries: the last query stands at the last key; may be negative
};

// A window with this many keys on one side has no bound there.
constexpr int64_t kUnlimitedWindow = INT64_MAX;

// Attention over packed sequences of different lengths; the score matrix never reaches memory.
//
//   o[i] = sum_j drop(p[i][j]) v[j],  p[i][j] = exp(s[i][j] - lse[i])
//   s[i][j] = cap(scale * R(i') q[i] . R(j) k[j]) + bias[i][j] - slope[h] * |i' - j|
//   lse[i] = log(exp(sink[h]) + sum_j exp(s[i][j]))
//
// for query row i and the key rows j of the same sequence and head that i may see; i and j count
// from the start of their sequence. Each of the following is off unless set, and they combine:
//
//   causal          j <= i'
//   window          i' - window_left <= j <= i' + window_right
//   block mask      the bit of block (i / block_size, j / block_size) is 1
//   soft_cap        cap(x) = soft_cap * tanh(x / soft_cap)
//   bias            added after the cap; -infinity hides a key
//   alibi_slopes    linear distance penalty of a head
//   sinks           the term exp(sink[h]); without sinks it is absent
//   rotary_base     R(n) rotates as rotary.h does, halves layout, by position n; whole head
//   v_head_size     the size of v's and o's heads; 0 means head_size
//
// Shapes: sequence s owns query rows [cu_q[s], cu_q[s+1]) and key rows [cu_k[s], cu_k[s+1]), either
// of which may be empty. Rows are laid out (row, head, head_size) with a stride in elements between
// rows, so that q, k and v may lie in one packed projection. Query head h reads key head
// h / (heads / kv_heads). lse is (heads, q_rows) in wide_of(dtype). max_q and max_k bound every
// sequence's length: the grid depends on them, never on the lengths. bias element (s, h, i, j) lies
// at s * bias_sequence_stride + h * bias_head_stride + i * bias_row_stride + j; a stride of 0
// shares the values. The bit of block (m, n) for (s, h) is bit n % 32 of word s *
// block_mask_sequence_stride + h * block_mask_head_stride + m * W + n / 32, where W =
// attention_block_mask_words(args) and m runs below ceil(max_q / block_size).
//
// Rows outside every sequence (cu_q[sequences] .. q_rows; likewise k_rows) get o = 0, lse = 0 and
// zero gradients. A query that sees no key gets o = 0, lse = -infinity (sink[h] with sinks) and
// passes no gradient on.
//
// Types: q, k, v, o and their gradients in dtype; bias in bias_dtype, which is dtype or f32;
// softmax and sums in fp32 (f64 for f64); slopes and sinks in wide_of(dtype). Tensor cores take the
// rotated q and k rounded to dtype.
//
// Dropout: probability p, taken as the nearest multiple of 2^-15 below 1, on p[i][j] after the
// softmax, kept ones scaled by 1/(1-p). What is kept is a function of the counters, i, j, and of head
// and row in the matrix of all ranks that rng describes (dropout.h), the same in every
// implementation and both directions.
//
// Stream: enqueued on ctx.stream; grid independent of lengths (graph-capturable); never
// synchronises. Nothing may alias.
//
// Order: bitwise equal run to run on one device; for backward see `deterministic`.
//
// Errors: invalid_argument, unsupported (no implementation fits), device.
//
// Cost: forward 4 q k D flops a head for each sequence, backward 2.5 times that (half if causal).
//
// Source: Dao et al., arXiv:2205.14135 and Dao, arXiv:2307.08691; ALiBi: Press et al.,
// arXiv:2108.12409; sinks: Xiao et al., arXiv:2309.17453; soft cap: Gemma 2, arXiv:2408.00118.
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

  CausalAlignment alignment = CausalAlignment::top_left;  // for causal, window, ALiBi and rotary
  int64_t window_left = kUnlimitedWindow, window_right = kUnlimitedWindow;
  float soft_cap = 0.0f;
  int64_t v_head_size = 0;
  float rotary_base = 0.0f;
  const void* bias = nullptr;
  DType bias_dtype = DType::f32;
  int64_t bias_sequence_stride = 0, bias_head_stride = 0, bias_row_stride = 0;
  const void* alibi_slopes = nullptr;    // (heads)
  const void* sinks = nullptr;           // (heads)
  const uint32_t* block_mask = nullptr;  // device memory
  int64_t block_size = 0;                // rows and columns of a block; 0 with no mask
  int64_t block_mask_sequence_stride = 0, block_mask_head_stride = 0;  // in words; 0 shares
};

// Needs the forward's inputs, o and lse, and d_o (stride o_stride).
//
// d_bias, d_alibi_slopes and d_sinks may each be null: not wanted. d_bias is in wide_of(dtype) with
// strides of its own and is the sum over every dimension whose stride is 0; elements i < max_q and
// j < max_k are written for each (s, h), zeros beyond a sequence. Gradients are overwritten, never
// added to.
//
// deterministic: the gradients must be bitwise equal run to run. An implementation that adds in the
// order of arrival refuses unless this is false; the others ignore it.
struct AttentionBackwardArgs {
  AttentionArgs forward;
  const void* d_o = nullptr;
  void* d_q = nullptr;  // strides d_q_stride, d_k_stride, d_v_stride
  void* d_k = nullptr;
  void* d_v = nullptr;
  int64_t d_q_stride = 0, d_k_stride = 0, d_v_stride = 0;
  void* delta = nullptr;      // scratch (heads, q_rows) in wide_of(dtype)
  void* workspace = nullptr;  // scratch, aligned to 256; without it slower implementations run
  int64_t workspace_bytes = 0;

  bool deterministic = true;
  void* d_bias = nullptr;
  int64_t d_bias_sequence_stride = 0, d_bias_head_stride = 0, d_bias_row_stride = 0;
  void* d_alibi_slopes = nullptr;  // (heads)
  void* d_sinks = nullptr;         // (heads)
};

class AttentionTable;  // tune/table.h

// The implementation for arguments of these sizes, types, strides, alignments of pointers and null
// pointers on that device: what was `measured` (null: nothing), else the first of the list that fits
// and is expected to pay. No pointer is followed. Set cu_q and cu_k: equal ones say that queries and keys have the same lengths. Backward,
// workspace_bytes is the most the caller would give (kAnyWorkspace: what the plan asks for);
// workspace itself is not read.
//
// Errors: invalid_argument, unsupported (no implementation fits).
Plan<AttentionArgs> plan_attention(const Context& ctx, const AttentionArgs& args,
                                   const AttentionTable* measured = nullptr);
Plan<AttentionBackwardArgs> plan_attention(const Context& ctx, const AttentionBackwardArgs& args,
                                           const AttentionTable* measured = nullptr);
constexpr int64_t kAnyWorkspace = INT64_MAX;

// Run a plan made for such arguments. Backward needs plan.workspace_bytes of workspace.
void attention_forward(const Context& ctx, const Plan<AttentionArgs>& plan,
                       const AttentionArgs& args);
void attention_backward(const Context& ctx, const Plan<AttentionBackwardArgs>& plan,
                        const AttentionBackwardArgs& args);
// Plan without measured choices and run; backward with the workspace that there is.
void attention_forward(const Context& ctx, const AttentionArgs& args);
void attention_backward(const Context& ctx, const AttentionBackwardArgs& args);

// Words of one row of the block mask: ceil(ceil(max_k / block_size) / 32).
inline int64_t attention_block_mask_words(const AttentionArgs& a) {
  if (a.block_size == 0) return 0;
  return ((a.max_k + a.block_size - 1) / a.block_size + 31) / 32;
}
inline int64_t attention_v_head_size(const AttentionArgs& a) {
  return a.v_head_size == 0 ? a.head_size : a.v_head_size;
}

}  // namespace saturate::kernels
