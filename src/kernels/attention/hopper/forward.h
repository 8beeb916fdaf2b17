// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// Hopper's forward pass (hopper/forward_kernel.cuh): bf16 and f16, head sizes 64 and 128, causal,
// any lengths; dropout, or of features.h what windowed.h names.
// Errors: device.
Fit attention_forward_hopper_fits(const Context& ctx, const AttentionArgs& args) noexcept;
// Refuses sequences so short in the mean that tiles of 128 rows would be mostly empty.
Fit attention_forward_hopper_pays(const Context& ctx, const AttentionArgs& args) noexcept;
void attention_forward_hopper_cuda(const Context& ctx, const AttentionArgs& args);

}  // namespace saturate::kernels
