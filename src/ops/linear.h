// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// y = x w^T + bias
//
// Shapes    x (rows, in), w (out, in) as in nn.Linear, bias (out) or none; returns (rows, out).
// Backward  d_x = d_y w added to x's gradient inside the product; d_w = d_y^T x in the wide type;
//           d_bias = column sums of d_y.
// Errors    invalid_argument when inner sizes differ.
// Kernel    kernels/gemm/matmul.h
Value linear(Tape& tape, Value x, Value w, Value bias = {});

// x + bias in every row: where products of several ranks were summed before it is added once.
//
// Shapes    x (rows, out), bias (out), a parameter; returns an alias of x: in place.
// Backward  d_x is d_y; d_bias = column sums of d_y.
// Errors    invalid_argument when sizes differ.
// Kernel    kernels/elementwise/elementwise.h
Value add_bias(Tape& tape, Value x, Value bias);

}  // namespace saturate::ops
