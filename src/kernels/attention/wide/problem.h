// SPDX-License-Identifier: Apache-2.0
// What a launch of the backward kernels for wide heads gets (keys.cuh, queries.cuh).
#pragma once
#include "kernels/attention/hopper/forward_problem.h"

namespace saturate::kernels::attention::wide {

// Boxes of 64 columns: q and d_o have the rows of the kernel's tile of queries, k and v of its
// keys. `parts` and `items` count the kernel's own pieces of work; o and dropout are not used.
struct BackwardProblem : ForwardProblem {
  CUtensorMap d_o;
  const float* delta;  // (heads, q_rows)
  void *d_q, *d_k, *d_v;
  int64_t d_q_stride, d_k_stride, d_v_stride;
  int kv_heads;
  float scale;
};

// Rows of a tile of the kernel that sums d_q: queries, and keys by the size of q's heads.
constexpr int kQueryRows = 128;
constexpr int query_keys(int64_t head_size) { return head_size == 256 ? 64 : 80; }
// And of the one that sums d_k and d_v: keys of a block and queries of a step. Blocks may work in
// clusters on neighbouring keys: each asks for its share of a tile of queries, for all of them.
constexpr int kKeyRows = 64;
constexpr int key_cluster(int64_t head_size) { return head_size == 256 ? 2 : 1; }

}  // namespace saturate::kernels::attention::wide
