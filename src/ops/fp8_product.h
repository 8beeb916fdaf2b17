// SPDX-License-Identifier: Apache-2.0
// What fp8_linear.cpp and fp8_feed_forward.cpp record: operands in 8 bits, their products, and the
// gradient of a matrix.
//
// Shapes    as ops/linear.h: x (rows, in), w (out, in), y and d_y (rows, out).
// Errors    none: who records them has compared the sizes.
// Kernel    kernels/fp8/fp8.h
#pragma once
#include "kernels/fp8/fp8.h"
#include "ops/tape.h"

namespace saturate::ops {

enum Fp8Role : int64_t { kFp8Input, kFp8Weight, kFp8Gradient };

// An operand in codes as it lies, and turned (cols, rows) where that is asked for.
struct Fp8Operand {
  Value codes, transposed = {};
};
struct Fp8Rounding {
  const char* label;
  kernels::Fp8Site* sites;  // of the layer
  Fp8Role role;
  bool transposed = false;
  // What is rounded, as kernels::Fp8QuantizeArgs has it; `copy` (rows, cols) gets it in x's type.
  kernels::Fp8Prepare prepare = kernels::Fp8Prepare::nothing;
  kernels::ActivationKind activation = kernels::ActivationKind::identity;
  Value given = {}, copy = {};
  Value bias = {};  // a parameter: the sums of the columns are its gradient
};
Fp8Operand fp8_round(Tape& tape, Value x, const Fp8Rounding& how);

// Of a tape that trains, before its first layer: all matrices of weights in 8 bits are rounded here, in one
// operation, but those that are gathered layer by layer.
void begin_weights_in_fp8(Tape& t);
// A layer's weights in codes, as they lie and turned.
Fp8Operand fp8_round_weight(Tape& t, Value w, kernels::Fp8Site* sites);

// y = x w^T + bias, of operands in codes.
void record_fp8_product(Tape& tape, const Fp8Operand& x, const Fp8Operand& w, Value bias, Value y,
                        kernels::Fp8Site* sites, Tape::BackwardFn backward = {});
// d_x = d_y w, added to `before` where there is one.
void record_fp8_input_gradient(Tape& tape, const Fp8Operand& d_y, const Fp8Operand& w, Value before,
                               Value d_x, kernels::Fp8Site* sites);

// Whether the gradient of w is a product of codes too, of operands that are turned for it: where the matrix
// is large enough for that to win (kernels/fp8/LADDER.md); smaller ones share launches in 16 bits
// (kernels/gemm/wgmma/matmul_group.h).
bool fp8_weight_gradient_pays(const Tape& tape, Value w, int64_t rows);
// d_w = d_y^T x of turned operands.
void record_fp8_weight_gradient(Tape& tape, const Fp8Operand& x, Value w, const Fp8Operand& d_y,
                                kernels::Fp8Site* sites);

}  // namespace saturate::ops
