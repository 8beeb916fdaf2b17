// SPDX-License-Identifier: Apache-2.0
// D = f(A B^T + bias) on Hopper's tensor cores, keeping A B^T + bias when aux is given
// (EpilogueKind::activation, forward layout, beta 0); and D = A B f'(aux) with the sums of D's columns
// (EpilogueKind::derivative, layout of an input gradient, beta 0): tiles of 128 x 256, cooperative.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& args);

Fit matmul_wgmma_derivative_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_wgmma_derivative_cuda(const Context& ctx, const MatmulArgs& args);
size_t matmul_wgmma_derivative_workspace(const Context& ctx, const MatmulArgs& args) noexcept;

// Whether they are faster than the plain product and the kernels behind it (LADDER.md): not for
// few tiles, nor where what gelu is given must be kept.
bool matmul_wgmma_activation_pays(const Context& ctx, const MatmulArgs& args) noexcept;
bool matmul_wgmma_derivative_pays(const Context& ctx, const MatmulArgs& args) noexcept;

}  // namespace saturate::kernels
