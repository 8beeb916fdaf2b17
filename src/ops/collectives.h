// SPDX-License-Identifier: Apache-2.0
// Collectives as operations of a tape, so that backward passes, lifetimes and lanes hold for them as
// for any other. With a group of one rank the first five return x and record nothing. For all:
//
// Types     any that the tape has; sums are of floating-point types.
// Stream    run in order on the lane of the group, beside the other lanes; capturable with NCCL.
// Order     bitwise equal run to run for given ranks; sums as Communicator::start says.
// Errors    collective, when the operation runs; invalid_argument where the function says so.
// Cost      rows * cols elements, times (ranks - 1) / ranks; an all-reduce twice that.
// Source    Shoeybi et al., arXiv:1909.08053; Korthikanti et al., arXiv:2205.05198 (Megatron-LM).
#pragma once
#include <vector>

#include "ops/tape.h"
#include "parallel/communicator.h"

namespace saturate::ops {

// A group as recorded operations use it; the communicator outlives the tape.
struct GroupOfRanks {
  parallel::Communicator* communicator = nullptr;
  parallel::Group group = {};
  int32_t lane = 0;
  // The group cuts something into equal parts, of which this rank has number `part`. Nobody named:
  // one part.
  int parts() const noexcept { return group.size() > 1 ? group.size() : 1; }
  int part() const noexcept { return parts() > 1 ? group.position(communicator->rank()) : 0; }
};

// All ranks' rows, in the order of positions.
//
// Shapes    x (rows, cols); returns (rows * ranks, cols).
// Backward  scatter_sum_rows of the gradient.
Value gather_rows(Tape& tape, const GroupOfRanks& ranks, Value x);

// The sum over the ranks, of which each keeps its part of the rows.
//
// Shapes    x (rows, cols); returns (rows / ranks, cols).
// Backward  gather_rows of the gradient.
// Errors    invalid_argument when the ranks do not divide the rows.
Value scatter_sum_rows(Tape& tape, const GroupOfRanks& ranks, Value x);

// scatter_sum_rows() of a piece of a sum.
//
// Shapes    x (rows, cols); rows / ranks rows of y from `row` on, which make() or alias() made.
// Backward  the caller's.
void scatter_sum_into(Tape& t, const GroupOfRanks& ranks, Value x, Value y, int64_t row,
                      Tape::BackwardFn backward = {});

// The sum over the ranks of partial results, after which all ranks compute the same.
//
// Shapes    x (rows, cols), as y.
// Backward  the gradient itself, which is the same on all ranks.
Value all_reduce_sum(Tape& tape, const GroupOfRanks& ranks, Value x);

// x, before ranks compute different parts from it. Shares x's memory, which nothing may overwrite.
//
// Shapes    x (rows, cols), as y.
// Backward  the sum of the gradients over the ranks.
Value copy_to_ranks(Tape& tape, const GroupOfRanks& ranks, Value x);

// Rows to and from every rank: those for position j lie behind those for j - 1, both ways.
//
// Shapes    x (sum of send_rows, cols); returns (sum of receive_rows, cols). What one rank sends
//           another receives.
// Backward  the gradients' rows go back.
// Errors    invalid_argument when x has other rows.
Value exchange_rows(Tape& tape, const GroupOfRanks& ranks, Value x, std::vector<int64_t> send_rows,
                    std::vector<int64_t> receive_rows);

// x to another rank of the group, by its position. In training a tape that ends in a send begins
// its backward pass with the gradient that comes back.
//
// Shapes    x (rows, cols), as the other rank's receive().
// Backward  receives the gradient.
// Errors    invalid_argument when `position` is no other rank.
void send(Tape& tape, const GroupOfRanks& ranks, Value x, int position);

// What the rank at `position` sends.
//
// Shapes    returns (rows, cols) of `dtype`, as that rank's send().
// Backward  sends the gradient back.
// Errors    invalid_argument when `position` is no other rank.
Value receive(Tape& tape, const GroupOfRanks& ranks, int position, DType dtype, int64_t rows,
              int64_t cols);

// What a run of the tape starts, in order: for parallel::require_matching and mismatch_of.
std::vector<parallel::Collective> collectives_of(const Tape& tape);

}  // namespace saturate::ops
