// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "ops/tape.h"

namespace saturate::ops {

// Weight (out, in) and bias (out) or none, parameters of the tape.
struct Projection {
  Value weight, bias = {};
};

// f(x w1^T + b1) w2^T + b2, for training, with as much of f, of its slope and of b1's gradient inside the
// products as makes them faster here; none where nothing of it does: linear() and activation() are for
// that. What is kept for the backward pass is what f is given; of relu inside the product its result
// and, where kernels know them, its slopes as bits, of gelu inside it its slopes and its result.
//
// Shapes    x (rows, in); w1 (width, in), w2 (out, width); returns (rows, out).
// Backward  as linear() and activation(); the gradient of what f is given comes out of the product with
//           w2, and the sums of its columns with it.
// Errors    invalid_argument when inner sizes differ.
// Kernel    kernels/gemm/matmul.h with the epilogues of kernels/gemm/epilogue.h;
//           kernels/activation/activation.h
Value feed_forward(Tape& tape, Value x, const Projection& in, const Projection& out,
                   kernels::ActivationKind kind);

}  // namespace saturate::ops
