// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

// A product whose results pass through shared memory. Maps of matrices (m, n) in boxes of kEpilogueTileM rows.
struct SlopesProblem : Problem {
  CUtensorMap slopes, result;
};

// The input gradient times slopes: those of relu at `slopes` (kRelu), or `slopes` themselves. `partial`
// (ceil(m / 128), n), unless null, gets the sums of the columns of every 128 rows, of the values before they round.
// beta is 0, splits 1, no bias. T: __nv_bfloat16 or __half.
template <class T, bool kRelu>
cudaError_t launch_slopes(const SlopesProblem& p, int blocks, cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
