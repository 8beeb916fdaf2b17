// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "kernels/activation/activation.h"
#include "ops/tape.h"

namespace saturate::ops {

// y = x w^T + bias
//
// Shapes    x (rows, in), w (out, in) as in nn.Linear, bias (out) or none; returns (rows, out).
// Backward  d_x = d_y w added to x's gradient inside the product; d_w = d_y^T x in the wide type;
//           d_bias = column sums of d_y.
// Errors    invalid_argument when inner sizes differ.
// Kernel    kernels/gemm/matmul.h; kernels/gemm/packed/packed_linear.h where weights are packed
//           (ParameterStore::pack)
Value linear(Tape& tape, Value x, Value w, Value bias = {});

// y = f(x w^T + bias) as one operation, for inference: with packed weights (Tape::packed), and on a GPU
// where a kernel is faster so. None elsewhere: linear() and activation() are for that.
//
// Shapes    as linear().
// Backward  none.
// Errors    as linear().
// Kernel    kernels/gemm/packed/packed_linear.h, kernels/gemm/matmul.h
Value activated_linear(Tape& tape, Value x, Value w, Value bias, kernels::ActivationKind kind);

// Rows [from, from + rows) of x make those of y from `to` on.
struct RowBlock {
  int64_t from = 0, to = 0, rows = 0;
};
// linear() in pieces of rows, each into its place in a value that is there.
//
// Shapes    as linear(); y, which make() or alias() made, has as many columns, and rows for all blocks.
// Backward  the caller's: as a rule linear_gradients() behind the last piece.
// Errors    as linear().
// Kernel    kernels/gemm/matmul.h
void linear_rows(Tape& t, Value x, Value w, Value bias, Value y,
                 const std::vector<RowBlock>& blocks, Tape::BackwardFn backward = {});
// The backward pass of linear().
//
// Shapes    as linear(); d_y as its result.
// Errors    none.
// Kernel    kernels/gemm/matmul.h
void linear_gradients(Tape& t, Value x, Value w, Value bias, Value d_y);

// x + bias in every row: where products of several ranks were summed before it is added once.
//
// Shapes    x (rows, out), bias (out), a parameter; returns an alias of x: in place.
// Backward  d_x is d_y; d_bias = column sums of d_y.
// Errors    invalid_argument when sizes differ.
// Kernel    kernels/elementwise/elementwise.h
Value add_bias(Tape& tape, Value x, Value bias);

// A term of add_low_rank(): b (outputs, rank), whose outputs are columns `column`, ... of y.
struct LowRankPart {
  Value b;
  int64_t column = 0;
  float scale = 1.0f;
};
// y + scale z_i b_i^T in the columns of each part i: the second half of adapters of low rank (Hu et al.,
// arXiv:2106.09685), beside a projection that several of them may share.
//
// Shapes    y (rows, out), written in place; z (rows, ranks of all parts): the columns z_i lie in
//           the order of parts, which touch different columns of y; returns an alias of y.
// Backward  d_z = scale d_y b and d_b = scale d_y^T z, part by part; d_y is y's gradient as it is.
// Errors    invalid_argument when sizes do not fit.
// Kernel    kernels/gemm/matmul.h
Value add_low_rank(Tape& tape, Value y, Value z, const std::vector<LowRankPart>& parts);

// x with elements at random set to 0 and the others times 1/(1 - p): x itself outside of training,
// or when p is 0. Rows of x must be whole: not those of one rank among several.
//
// Shapes    x (rows, cols); returns the same.
// Backward  d_x from d_y and the mask; x is not kept.
// Errors    invalid_argument when another operation draws this mask.
// Kernel    kernels/activation/activation.h
Value dropout(Tape& tape, Value x, float p, MaskKind mask);

// y = x w^T in the wide type, from a master: for the few columns of a router, whose largest decides.
// Nothing of x's size in the wide type is kept for the backward pass.
//
// Shapes    x (rows, in) in the compute type; w (out, in), a wide_parameter; returns (rows, out) in
//           the wide type.
// Backward  as linear(); d_x is rounded to the compute type and added by an operation of its own.
// Errors    invalid_argument when inner sizes differ.
// Kernel    kernels/gemm/matmul.h
Value wide_linear(Tape& tape, Value x, Value w);

}  // namespace saturate::ops
