// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "ops/tape.h"

namespace saturate::ops {

// y = dropout(f(x)), or gated: x (rows, 2 F) = [gate | up], y (rows, F) = dropout(f(gate) * up).
Value activation(Tape& tape, Value x, kernels::ActivationKind kind, bool gated, float dropout);

}  // namespace saturate::ops
