// SPDX-License-Identifier: Apache-2.0
// What matmul.cpp chooses from. All of these take arguments that matmul() has checked: m, n > 0 and
// c, ldc filled in.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

Fit matmul_blas_cpu_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_blas_cpu(const Context& ctx, const MatmulArgs& args);

Fit matmul_cublaslt_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_cublaslt_cuda(const Context& ctx, const MatmulArgs& args);
void matmul_tune_cublaslt_cuda(const Context& ctx, const MatmulArgs& args);

// D[m][n] = beta * C[m][n] + bias[n]: the whole answer when k == 0, and the start of one where the
// library cannot add the bias itself.
void matmul_start_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
