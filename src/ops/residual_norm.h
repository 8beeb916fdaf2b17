// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/norm/norm.h"
#include "ops/tape.h"

namespace saturate::ops {

struct NormParameters {
  kernels::NormKind kind = kernels::NormKind::layer_norm;
  Value weight;  // wide parameters (cols)
  Value bias;    // none for rms_norm
  float eps = 1e-5f;
};

struct ResidualNorm {
  Value sum;  // x + dropout(branch); x itself when there is no branch
  Value y;    // norm(sum)
};

// The joint between two sublayers: residual sum, dropout of the branch and normalisation in one
// pass. Pre-norm models carry `sum` on, post-norm models `y`.
//
// Shapes    x, branch (rows, cols); branch may be none; sum, y (rows, cols).
// Backward  d_x takes in what was x's gradient when there is no branch, and is added to it
//           otherwise; d_branch is d_x through the dropout mask. Keeps sum, mean and rstd.
// Errors    invalid_argument when the operation runs, as the kernel says.
// Kernel    kernels/norm/norm.h
ResidualNorm residual_norm(Tape& tape, Value x, Value branch, const NormParameters& norm,
                           float dropout);

}  // namespace saturate::ops
