// SPDX-License-Identifier: Apache-2.0
// matmul() with at most 64 rows of A, see few_rows.h: bf16 and f16, op(A) = A, op(B) = B^T, with bias,
// residual and activation.
#pragma once
#include "kernels/dispatch.h"
#include "kernels/gemm/few_rows/few_rows.h"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

Fit matmul_few_rows_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// The same where it was measured to be as fast as others: up to 32 rows of up to a million weights,
// 16 of four million, 8 of more. A start then needs no cuBLASLt.
Fit matmul_few_rows_cuda_pays(const Context& ctx, const MatmulArgs& args) noexcept;
// Its activation costs nothing beside the weights.
bool matmul_few_rows_epilogue_pays(const Context& ctx, const MatmulArgs& args) noexcept;

// Of a problem that fits. A row's bits do not depend on the other rows, nor on how many there are
// for plans of the same warps_k.
void matmul_few_rows_cuda(const Context& ctx, const MatmulArgs& args);
void matmul_few_rows_run(const Context& ctx, const MatmulArgs& args, const few_rows::Plan& plan);

}  // namespace saturate::kernels
