// SPDX-License-Identifier: Apache-2.0
// fp32 products on Hopper's bf16 tensor cores: each operand is cut in three bf16 parts and six of
// their nine products are summed (Ootomo and Yokota 2022 do so with fp16 and TF32). More
// accurate than fp32 multiplication and addition; error and speed are in LADDER.md. An infinity in
// an operand gives NaN where IEEE arithmetic may give an infinity.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// Bytes of workspace for all parts: 6 for an element of A or B, k rounded up to 64. With less the
// product runs in pieces, of 2048 rows or more, or of 256 values of k or more.
size_t matmul_bf16x6_workspace(const MatmulArgs& args) noexcept;

// f32 only, not both operands transposed; refuses a workspace too small for a piece.
Fit matmul_bf16x6_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// The same for the list of matmul(): where it is faster than fp32 arithmetic.
Fit matmul_bf16x6_cuda_pays(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_bf16x6_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
