// SPDX-License-Identifier: Apache-2.0
// fp32 products on Hopper's bf16 tensor cores: each operand is cut in three bf16 parts and six of
// their nine products are summed (Ootomo and Yokota 2022 do so with fp16 and TF32). As accurate as
// fp32 multiplication and addition; error and speed are in LADDER.md.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// Bytes of workspace for the parts: 6 for an element of A or B, k rounded up to 64.
size_t matmul_bf16x6_workspace(const MatmulArgs& args) noexcept;

// f32 only, not both operands transposed; refuses a workspace without room for the parts.
Fit matmul_bf16x6_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void matmul_bf16x6_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
