// SPDX-License-Identifier: Apache-2.0
// A linear layer whose operands are rounded to 8 or 4 bits by blocks while a model trains.
#pragma once
#include <optional>

#include "kernels/block_scaled/block_scaled.h"
#include "ops/tape.h"

namespace saturate::ops {

// The format where linear() with this matrix is block_linear(): in lists that train, where the store says so
// (ParameterStore::multiply_in_blocks).
std::optional<kernels::BlockFormat> block_format_of(const Tape& tape, Value w);

// y = x w^T + bias with x and w rounded in blocks along the inner dimension.
//
// Shapes    as linear(); in and out multiples of 32.
// Backward  d_x = d_y w, added to x's gradient inside the product, with both rounded in blocks along out: w
//           from its values, not from what forward made of it; d_w and d_bias as linear(), of operands that
//           are not rounded.
// Errors    as linear().
// Kernel    kernels/block_scaled/block_scaled.h
Value block_linear(Tape& tape, Value x, Value w, Value bias, kernels::BlockFormat format);

}  // namespace saturate::ops
