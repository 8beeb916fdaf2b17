// SPDX-License-Identifier: Apache-2.0
// fp32 products on Hopper's fp16 tensor cores: each row of A and column of B is scaled by a power of two and cut in two
// fp16 parts, and three of their four products are summed (Ootomo and Yokota 2022 do so without scales). More accurate
// than fp32 multiplication and addition; error and speed are in LADDER.md. A value keeps 22 bits down to 2^-28 of the
// largest of its row or column, and counts as zero below 2^-50 of it. An infinity in an operand gives NaN where IEEE
// arithmetic may give an infinity. Results repeat bit for bit.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// Bytes of workspace for all parts and partial sums: 4 for an element of A or B, k rounded up to 64, and 4 for each row
// and column. With less the product runs in pieces, of 2048 rows or more, or of 256 values of k or more.
size_t matmul_fp16x3_workspace(const MatmulArgs& args) noexcept;

// f32 only, not both operands transposed; refuses a workspace too small for a piece.
Fit matmul_fp16x3_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// The same for the list of matmul(): where it is faster than fp32 arithmetic.
Fit matmul_fp16x3_cuda_pays(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_fp16x3_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
