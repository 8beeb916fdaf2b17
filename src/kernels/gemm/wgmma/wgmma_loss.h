// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

constexpr int kLossTileM = 128, kLossTileN = 256;

// out[m][n] = 2^min((v - `c`[m]) log2 e, `alpha`) of the forward product v with its bias, 0 for n >= `classes`. c is
// in fp32; +infinity there makes a row of zeros. `partial` (tiles_n, m) gets each tile's sums of a row, before they
// round. beta is 0, splits 1. T: __nv_bfloat16.
template <class T>
cudaError_t launch_exponentials(const Problem& p, int blocks, cudaStream_t stream);

// out[m][n] = `c`[m] v + `bias`[n] of the input gradient v, c and bias (or null) in fp32; 0 where c is. beta is 0,
// splits 1. T as above.
template <class T>
cudaError_t launch_scaled_rows(const Problem& p, int blocks, cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
