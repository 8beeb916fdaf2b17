// SPDX-License-Identifier: Apache-2.0
// fp32 attention on the bf16 tensor cores (compute capability 8.0): every operand in three parts.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// Head size 32, 64 or 128, no features besides causal masks and dropout; rows at 16 bytes.
Fit attention_forward_bf16x6_fits(const Context& ctx, const AttentionArgs& args) noexcept;
Fit attention_backward_bf16x6_fits(const Context& ctx, const AttentionBackwardArgs& args) noexcept;

// Launchers; the arguments have been validated and fit. Values within 0.4% of the largest float
// overflow in the first part.
void attention_forward_bf16x6_cuda(const Context& ctx, const AttentionArgs& args);
void attention_backward_bf16x6_cuda(const Context& ctx, const AttentionBackwardArgs& args);

namespace attention {
// One source each, because each takes long to compile.
void forward_bf16x6_d32(const Context& ctx, const AttentionArgs& a);
void forward_bf16x6_d64(const Context& ctx, const AttentionArgs& a);
void forward_bf16x6_d128(const Context& ctx, const AttentionArgs& a);
void backward_bf16x6_d32(const Context& ctx, const AttentionBackwardArgs& b);
void backward_bf16x6_d64(const Context& ctx, const AttentionBackwardArgs& b);
void backward_bf16x6_d128(const Context& ctx, const AttentionBackwardArgs& b);
}  // namespace attention

}  // namespace saturate::kernels
