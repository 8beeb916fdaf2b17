// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "ops/tape.h"

namespace saturate::ops {

// y = dropout(f(x)), or gated: y = dropout(f(gate) * up) with x = [gate | up].
//
// Shapes    x (rows, F), gated (rows, 2 F); y (rows, F).
// Backward  d_x from d_y and x, which is kept until then; added to x's gradient by an operation of
//           its own.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/activation/activation.h
Value activation(Tape& tape, Value x, kernels::ActivationKind kind, bool gated, float dropout);

}  // namespace saturate::ops
