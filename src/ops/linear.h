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

}  // namespace saturate::ops
