// SPDX-License-Identifier: Apache-2.0
// D = f(A B^T + bias) on Hopper's tensor cores, keeping A B^T + bias when aux is given, of relu its slopes as bits
// (EpilogueKind::activation, forward layout, beta 0); and D = A B f'(aux) with the sums of D's columns
// (EpilogueKind::derivative, layout of an input gradient, beta 0).
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& args);
// In tiles of 128 x 192 of one consumer each, or (ping_pong false) of 128 x 256 that both share. Same results, but
// for the order of column sums. Kernels that exist in one kind only (slopes, gelu's derivative) run in it.
void matmul_wgmma_activation_run(const Context& ctx, const MatmulArgs& args, bool ping_pong);

Fit matmul_wgmma_derivative_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_wgmma_derivative_cuda(const Context& ctx, const MatmulArgs& args);
void matmul_wgmma_derivative_run(const Context& ctx, const MatmulArgs& args, bool ping_pong);
size_t matmul_wgmma_derivative_workspace(const Context& ctx, const MatmulArgs& args) noexcept;

// Whether ping-pong tiles are faster: where every block has several.
bool matmul_wgmma_takes_turns(const Context& ctx, const MatmulArgs& args) noexcept;

// Whether they are faster than the plain product and the kernels behind it (LADDER.md): not for
// few tiles, nor where what gelu is given must be kept: keep its slopes, if a block has several.
bool matmul_wgmma_activation_pays(const Context& ctx, const MatmulArgs& args) noexcept;
bool matmul_wgmma_derivative_pays(const Context& ctx, const MatmulArgs& args) noexcept;

}  // namespace saturate::kernels
