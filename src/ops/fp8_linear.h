// SPDX-License-Identifier: Apache-2.0
// A linear layer whose operands are rounded to 8 bits while a model trains.
#pragma once
#include "ops/tape.h"

namespace saturate::ops {

// Whether linear() with this matrix is fp8_linear(): in lists that train, where the store says so
// (ParameterStore::multiply_in_fp8).
bool multiplies_in_fp8(const Tape& tape, Value w);

// y = x w^T + bias with x and w rounded to e4m3, each by a scale of its own.
//
// Shapes    as linear(); in and out multiples of 16.
// Backward  d_x = d_y w with d_y rounded to e5m2, added to x's gradient inside the product; d_w and
//           d_bias as linear(), of operands that are not rounded.
// Errors    as linear().
// Kernel    kernels/fp8/fp8.h
Value fp8_linear(Tape& tape, Value x, Value w, Value bias);

}  // namespace saturate::ops
