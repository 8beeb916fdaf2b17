// SPDX-License-Identifier: Apache-2.0
// What the Hopper backward kernels get from the host.
#pragma once
#include <cuda.h>

#include "kernels/attention/attention.h"
#include "kernels/attention/hopper/windowed.h"

namespace saturate::kernels::attention::hopper {

// Boxes of 64 columns (128 bytes, swizzled over 128 bytes): q and d_o of a step's queries, k and v
// of kBackwardKeys rows, d_k and d_v of half as many, a consumer's.
struct BackwardProblem {
  CUtensorMap q, k, v, d_o, d_k, d_v;
  AttentionBackwardArgs b;
  float score_scale;  // for powers of two
  int group;          // query heads of a key head
  int key_blocks;     // of the longest sequence
  int query_blocks;   // of a head, see backward_query_blocks
  int units, band;    // band: heads whose units are numbered together
  // Sums of d_q that wait for further keys, for each (head, block of queries) a piece of fp32
  // values; how many blocks of keys have added to each half of a piece; the next unit to take.
  float* partial;
  int* added;
  int* ticket;
  size_t added_bytes;     // with the ticket
  WindowedArgs windowed;  // read by the instances for it alone
  // For the gradient of ALiBi slopes, or null: a sum for each (head, block of keys, warp). Blocks
  // of keys are numbered as those of queries are.
  float* slope_sums;
  int64_t key_pieces;
};

// Queries a step for a head size, and keys a block.
constexpr int backward_queries(int64_t head_size) { return head_size == 64 ? 128 : 64; }
constexpr int kBackwardKeys = 128;

// Blocks of queries of all sequences, no more than these whatever their lengths: sequence s starts
// at block first_row / queries + s.
inline int64_t backward_query_blocks(const AttentionArgs& a) {
  return a.q_rows / backward_queries(a.head_size) + a.sequences;
}

// Likewise of keys.
inline int64_t backward_key_blocks(const AttentionArgs& a) {
  return a.k_rows / kBackwardKeys + a.sequences;
}
constexpr int kBackwardWarps = 8;  // that compute

// d_alibi_slopes from slope_sums.
void backward_slopes(const Context& ctx, const BackwardProblem& p);

// The instances of cmake/attention_instances.cmake: bf16 or f16, head size 64 or 128; windows,
// bottom-right alignment or sinks, with or without a soft cap or ALiBi slopes (windowed.h), or
// dropout.
template <class T, int kD, bool kWindowed, bool kScoreMod, bool kDrops>
void launch_backward(const Context& ctx, const BackwardProblem& p);

}  // namespace saturate::kernels::attention::hopper
