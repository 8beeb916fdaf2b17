// SPDX-License-Identifier: Apache-2.0
// A feed-forward layer whose operands are rounded to 8 bits while a model trains.
#pragma once
#include "ops/feed_forward.h"

namespace saturate::ops {

// f(x w1^T + b1) w2^T + b2 with both products as in fp8_linear(). f is computed where its result is rounded,
// and its slope where the gradient is: neither is written in 16 bits, unless a weight gradient reads it.
//
// Shapes    as feed_forward(); all sizes multiples of 16.
// Backward  as fp8_linear(); the gradient of what f is given is rounded, and its columns summed for b1, as it
//           is made.
// Errors    none: feed_forward() has compared the sizes.
// Kernel    kernels/fp8/fp8.h
Value fp8_feed_forward(Tape& tape, Value x, const Projection& in, const Projection& out,
                       kernels::ActivationKind kind);

}  // namespace saturate::ops
