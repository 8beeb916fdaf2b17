// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/cross_entropy.h"
#include "ops/tape.h"

namespace saturate::ops {

// The output layer and the loss of a step in one, where no logits are stored (training only). linear() and
// cross_entropy() are for all else.
//
// Shapes    x (rows, width); w (classes, width), of which loss.vocab count; bias (classes) or none, which does
//           not train.
// Backward  x's gradient and w's, by the products of kernels/loss/linear_cross_entropy.h.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/loss/linear_cross_entropy.h
void linear_cross_entropy(Tape& tape, Value x, Value w, Value bias, const LossSpec& loss);

// Whether that is faster here than linear() and cross_entropy(), and possible: the classes are whole, and nobody
// asks for the logits.
bool linear_cross_entropy_pays(const Tape& tape, Value x, ParameterId w, ParameterId bias,
                               const LossSpec& loss);

}  // namespace saturate::ops
