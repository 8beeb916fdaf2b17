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
// Head sizes 32, 64 and 128 (cmake/attention_instances.cmake).
template <int kD>
void launch_forward_bf16x6(const Context& ctx, const AttentionArgs& a);
template <int kD>
void launch_backward_bf16x6(const Context& ctx, const AttentionBackwardArgs& b);
}  // namespace attention

}  // namespace saturate::kernels
