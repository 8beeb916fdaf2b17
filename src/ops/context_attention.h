// SPDX-License-Identifier: Apache-2.0
// Context parallel by exchange: outside of attention a rank has some of the rows of long sequences
// with all heads, inside it all rows with some of the heads, so that attention is that of one rank.
// With a group of one rank both return x and record nothing. For both:
//
// Types     any that the tape has: nothing is computed.
// Stream    run in order on the lane of the group; capturable with NCCL.
// Order     copies alone, so bitwise the same for given ranks.
// Source    Jacobs et al., arXiv:2309.14509 (DeepSpeed-Ulysses).
#pragma once
#include <vector>

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

}  // namespace saturate::ops
