// SPDX-License-Identifier: Apache-2.0
// Context parallel. By exchange: outside of attention a rank has some of the rows of long sequences
// with all heads, inside it all rows with some of the heads, so that attention is that of one rank.
// With a group of one rank both functions return x and record nothing. By gathering: each rank's
// queries meet the keys and values of all rows (chunked_attention). For all:
//
// Types     any that the tape has; an exchange computes nothing.
// Stream    run in order on the lane of the group; capturable with NCCL.
// Order     bitwise the same for given ranks; exchanges are copies alone.
// Source    Jacobs et al., arXiv:2309.14509 (DeepSpeed-Ulysses); Llama Team, arXiv:2407.21783, section
//           3.3.2 (gathered keys, chunks from both ends).
#pragma once
#include <vector>

#include "ops/attention.h"
#include "ops/collectives.h"

namespace saturate::ops {

// All ranks' rows, in the order of positions, with this rank's part of each block of columns.
//
// Shapes    x (rows, sum of blocks), the same on all ranks; returns (rows * ranks, columns / ranks).
//           blocks: widths of q, k and v, say, as they lie in x; each is cut into equal parts.
// Backward  heads_to_rows of the gradient.
// Errors    invalid_argument when blocks do not cover x or the ranks do not divide them.
// Cost      a copy of x, and an all-to-all of (ranks - 1) / ranks of it.
Value rows_to_heads(Tape& tape, const GroupOfRanks& ranks, Value x, std::vector<int64_t> blocks);

// The way back: this rank's rows with all columns.
//
// Shapes    x (rows * ranks, sum of blocks / ranks); returns (rows, sum of blocks). blocks: as above,
//           of what is returned.
// Backward  rows_to_heads of the gradient.
// Errors    as above, and when the ranks do not divide the rows.
// Cost      as above.
Value heads_to_rows(Tape& tape, const GroupOfRanks& ranks, Value x, std::vector<int64_t> blocks);

// Attention of the queries of this rank's two chunks (row_chunks.h) to the keys and values of all
// ranks' chunks, which are gathered. Any number of heads: nothing is cut by heads.
//
// Shapes    q (rows, heads * head_size), with two chunks of rows one behind the other; kv (key rows,
//           2 * kv_heads * head_size), keys before values, as q; without kv it lies behind q in q's
//           columns. Returns q's rows, heads * head_size columns.
//           spec: heads, sizes and mask; cu_k, sequences, max_q and max_k of the whole micro-batch;
//           q, k, v and cu_q are not read. chunk_offsets: of q's rows, device memory.
// Masks     by the rows of the micro-batch, as one rank draws them.
// Backward  gradients of keys and values are summed over the ranks, which keep their rows each.
// Errors    those of attention().
// Cost      an all-gather of the keys and values, (ranks - 1) times kv; copies of q, of the result and
//           of the keys that each chunk sees; backward as much, with a reduce-scatter.
Value chunked_attention(Tape& tape, const GroupOfRanks& ranks, Value q, Value kv,
                        AttentionSpec spec, const int32_t* chunk_offsets);

}  // namespace saturate::ops
