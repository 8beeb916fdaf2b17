// SPDX-License-Identifier: Apache-2.0
// The tensor-core instances: one source each, because each takes long to compile.
#pragma once
#include "kernels/attention/attention.h"

namespace saturate::kernels::attention {

void forward_mma_d32(const Context& ctx, const AttentionArgs& a);
void forward_mma_d64(const Context& ctx, const AttentionArgs& a);
void forward_mma_d128(const Context& ctx, const AttentionArgs& a);
// mean: of the lengths, from which the tile follows.
void backward_short_d32_bf16(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean);
void backward_short_d32_f16(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean);
void backward_short_d64_bf16(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean);
void backward_short_d64_f16(const Context& ctx, const AttentionBackwardArgs& b, int64_t mean);
void backward_mma_d32(const Context& ctx, const AttentionBackwardArgs& b);
void backward_mma_d64(const Context& ctx, const AttentionBackwardArgs& b);
void backward_mma_d128(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace saturate::kernels::attention
