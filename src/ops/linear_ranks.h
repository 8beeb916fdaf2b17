// SPDX-License-Identifier: Apache-2.0
// Products of ranks that share a matrix, with the transfer of their rows before or behind them. Both
// may be computed in pieces of rows, so that a transfer runs on the lane of the group beside products
// that do not wait for it. With a group of one rank both are linear().
//
// Types     as linear().
// Stream    products on lane 0, transfers on the lane of the group; capturable with NCCL.
// Order     bitwise equal run to run for given ranks and pieces; other pieces may round otherwise.
// Errors    invalid_argument as linear() and scatter_sum_rows().
// Cost      that of the product and of one transfer of all rows; for each piece a launch for each rank.
// Source    Wang et al., ASPLOS 2023 (overlap by decomposition); Chang et al., arXiv:2406.06858.
#pragma once
#include "ops/collectives.h"

namespace saturate::ops {

// linear() of the rows of all ranks.
//
// Shapes    x (rows, in), w (out, in), bias (out) or none; returns (rows * ranks, out).
// Pieces    more than one: this rank's own rows are multiplied while those of the others arrive. 0: if
//           a model of time says that it pays (Hopper, 16 bits; else not).
// Backward  as gather_rows() and linear().
Value gather_linear(Tape& tape, const GroupOfRanks& ranks, Value x, Value w, Value bias,
                    int64_t pieces = 0);

// The sum over the ranks of their products x w^T, of which each keeps its part of the rows.
//
// Shapes    x (rows, in), w (out, in); returns (rows / ranks, out).
// Pieces    so many, or fewer where these do not cut a rank's rows into equal multiples of eight: one
//           is summed over the ranks while the next is multiplied. 0: as many as a model of time says.
// Backward  as scatter_sum_rows() and linear().
Value linear_scatter(Tape& tape, const GroupOfRanks& ranks, Value x, Value w, int64_t pieces = 0);

}  // namespace saturate::ops
