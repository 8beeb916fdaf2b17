// SPDX-License-Identifier: Apache-2.0
// Attention on compute capability 9.0 with wide heads: bf16 or f16, head size 256, or 192 with
// values of 128; causal, any lengths, grouped heads; at head size 256 windows, bottom-right
// alignment, sinks and a soft cap. No other feature of features.h, no dropout. Needs no
// workspace, and repeats bit for bit.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

Fit attention_forward_wide_fits(const Context& ctx, const AttentionArgs& args) noexcept;
// Refuses sequences so short in the mean that tiles of 128 rows would be mostly empty.
Fit attention_forward_wide_pays(const Context& ctx, const AttentionArgs& args) noexcept;
// Errors: device. The contract is attention.h's.
void attention_forward_wide_cuda(const Context& ctx, const AttentionArgs& args);

Fit attention_backward_wide_fits(const Context& ctx, const AttentionBackwardArgs& b) noexcept;
// Refuses sequences so short in the mean that tiles of 128 rows would be mostly empty.
Fit attention_backward_wide_pays(const Context& ctx, const AttentionBackwardArgs& b) noexcept;
// Errors: device. The contract is attention.h's.
void attention_backward_wide_cuda(const Context& ctx, const AttentionBackwardArgs& b);

}  // namespace saturate::kernels
