// SPDX-License-Identifier: Apache-2.0
// D = f(A B^T + bias) on Hopper's tensor cores, keeping A B^T + bias when aux is given
// (EpilogueKind::activation, forward layout, beta 0): tiles of 128 x 256, cooperative.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
