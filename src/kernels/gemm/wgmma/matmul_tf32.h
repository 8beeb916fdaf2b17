// SPDX-License-Identifier: Apache-2.0
// fp32 products with allow_tf32 on Hopper's tensor cores.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// The tensor cores read tf32 with k innermost only: B that is not transposed (or A that is) is
// first copied, transposed, into the workspace. TMA rounds both to tf32.
// Alignment: 16 bytes a row of what is not copied, 8 of D.
//
// Error     within (2^-10 + (k + 4) 2^-23) sum |a b|.
// Workspace 4 bytes an element of each operand that is copied.
Fit matmul_tf32_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_tf32_cuda(const Context& ctx, const MatmulArgs& args);
size_t matmul_tf32_workspace(const MatmulArgs& args) noexcept;

}  // namespace saturate::kernels
