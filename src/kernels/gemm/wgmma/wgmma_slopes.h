// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

// Rows of a tile that one consumer has: boxes of the maps below, and what a row of column sums is made of.
constexpr int rows_of_consumer(bool ping_pong) {
  return ping_pong ? kEpilogueTileM : kEpilogueTileM / 2;
}

// A product whose results pass through shared memory. Maps of matrices (m, n) in boxes of rows_of_consumer() rows.
struct SlopesProblem : Problem {
  CUtensorMap slopes, result;
};

// The input gradient times slopes of `kind`, by what the activation was given at `slopes`, in shared tiles: gelu. By
// turns, times `slopes` themselves: identity. `partial` (ceil(m / rows_of_consumer()), n),
// unless null, gets the sums of the columns of so many rows, of the values before they round. beta is 0, splits 1, no
// bias. T: __nv_bfloat16 or __half.
template <class T, bool kPingPong>
cudaError_t launch_slopes(ActivationKind kind, const SlopesProblem& p, int blocks,
                          cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
