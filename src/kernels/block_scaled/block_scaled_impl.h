// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/block_scaled/block_scaled.h"

namespace saturate::kernels {

void block_quantize_cpu(const Context& ctx, const BlockQuantizeArgs& args);
void block_quantize_cuda(const Context& ctx, const BlockQuantizeArgs& args);
void block_matmul_cpu(const Context& ctx, const BlockMatmulArgs& args);
void block_matmul_cuda(const Context& ctx, const BlockMatmulArgs& args);

// factors[0] = a_scale b_scale, factors[1] = beta, in device memory.
void block_factors_cuda(const Context& ctx, const BlockTensor* a, const BlockTensor* b, float beta,
                        float* factors);

}  // namespace saturate::kernels
