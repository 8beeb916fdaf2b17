// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/activation/activation.h"
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

// The forward product, in tiles of 128 x 192 of one consumer each or of 128 x 256 of both, with the activation: relu, gelu_tanh or gelu_erf. `c`
// and `ldc` of the problem say where the values before it go, of relu a bit for each that is positive (wgmma_bits.cuh;
// null: nowhere); beta is 0, splits 1.
// T: __nv_bfloat16 or __half.
template <class T, bool kPingPong>
cudaError_t launch_activation(ActivationKind kind, const Problem& p, int blocks,
                              cudaStream_t stream);

// The same in tiles of one consumer, which keeps the activation's slopes at `c` instead; gelu_tanh or gelu_erf.
template <class T, ActivationKind kKind>
cudaError_t launch_activation_and_slopes(const Problem& p, int blocks, cudaStream_t stream);

// The input gradient in such tiles, times relu's slopes, which are the bits at `c`. `partial`
// (ceil(m / rows_of_consumer()), n), unless null, gets the sums of the columns of so many rows, of the values before they
// round. beta is 0, splits 1, no bias.
template <class T, bool kPingPong>
cudaError_t launch_with_bits(const Problem& p, int blocks, cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
