// SPDX-License-Identifier: Apache-2.0
// The parts of a mixture of experts: a router's choices, rows sorted by expert, a projection each
// expert has for itself, and the way back. Sizes are those of the worst case; how many rows an
// expert has stands in device memory alone, so that one captured graph serves every routing.
#pragma once
#include "kernels/activation/activation.h"
#include "ops/collectives.h"
#include "ops/tape.h"

namespace saturate::ops {

// Training only, but for k: without training every token has its k experts, whatever is beside it.
struct RoutingSpec {
  int64_t k = 1;
  bool random_second = false;  // GShard: kernels::RouteTokensArgs
  bool count_first = false;    // the balance counts first choices alone
  double capacity_factor = 0;  // 0: every choice is computed
  float balance_loss = 0.0f, z_loss = 0.0f;
  const int32_t* valid = nullptr;  // rows of the micro-batch that hold tokens; null: all
  // The ranks that share a micro-batch's rows, in the order of rows: places and counts are those of
  // the whole of it, on any number of ranks.
  GroupOfRanks rows = {};  // none: this one has all
  int64_t layer = 0;       // where AuxiliaryLosses::routing counts
};
struct Routing {
  Value choices;  // (rows, k) i32, -1: none, or no place was left
  Value gates;    // (rows, k) in the wide type
};

// Which experts compute each row, with what weight.
//
// Shapes    logits (rows, experts) in the wide type.
// Backward  d_logits from the gradient of the gates and from the two losses.
// Random    MaskKind::routing.
// Errors    invalid_argument when the operation runs, as the kernels say.
// Kernel    kernels/experts/routing.h
Routing route(Tape& tape, Value logits, const RoutingSpec& spec);

// Where each row lies for each of its experts.
struct SortedRows {
  Value slots;          // (rows, k) i32
  Value offsets;        // (1, experts + 1) i32
  int64_t most = 0;  // rows that may have to be there: each token's, for all it may choose
  int64_t experts = 0;
};

// Shapes    choices (rows, k) of experts [0, experts).
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/experts/routing.h
SortedRows sort_by_expert(Tape& tape, Value choices, int64_t experts);

// A copy of each row for each of its experts.
//
// Shapes    x (rows, cols); returns (most, cols), of which the last rows may hold nothing.
// Backward  the sum over a row's copies, added by an operation of its own.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/experts/expert_rows.h
Value dispatch_rows(Tape& tape, Value x, const SortedRows& sorted);

// y = x w_e^T for the rows of each expert e.
//
// Shapes    x (most, in), w (experts * out, in); returns (most, out).
// Backward  d_x, added by an operation of its own; d_w in the wide type.
// Errors    invalid_argument when inner sizes differ or the rows of w are no multiple of experts.
// Kernel    kernels/gemm/grouped/grouped_gemm.h
Value grouped_linear(Tape& tape, Value x, Value w, const SortedRows& sorted);

// y = f(x), or gated f(gate) * up with x = [gate | up], for the rows that are there.
//
// Shapes    x (most, F), gated (most, 2 F); returns (most, F).
// Backward  d_x from d_y and x, added by an operation of its own.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/activation/activation.h
Value expert_activation(Tape& tape, Value x, const SortedRows& sorted, kernels::ActivationKind kind,
                        bool gated);

// For each row the sum of its experts' results, weighted by its gates; 0 where it has none.
//
// Shapes    x (most, cols), gates (rows, k) in the wide type; returns (rows, cols).
// Backward  d_x and d_gates, each added by an operation of its own.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/experts/expert_rows.h
Value combine_rows(Tape& tape, Value x, Value gates, const SortedRows& sorted);

}  // namespace saturate::ops
