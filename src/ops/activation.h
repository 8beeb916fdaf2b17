// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "ops/tape.h"

namespace saturate::ops {

// Where ranks compute columns each, `columns` are all of them, and y's begin at first_column: masks
// go by that. 0: y's own are all.
struct ColumnPart {
  int64_t first_column = 0, columns = 0;
};

// y = dropout(f(x)), or gated: y = dropout(f(gate) * up) with x = [gate | up].
//
// Shapes    x (rows, F), gated (rows, 2 F); y (rows, F).
// Backward  d_x from d_y and x, which is kept until then; added to x's gradient by an operation of
//           its own.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/activation/activation.h
Value activation(Tape& tape, Value x, kernels::ActivationKind kind, bool gated, float dropout,
                 ColumnPart part = {});

}  // namespace saturate::ops
