// SPDX-License-Identifier: Apache-2.0
// Attention forward written with CuTe, the layout algebra of NVIDIA's CUTLASS: a rung of the ladder
// to read beside hopper/. Dispatch never chooses it.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// o and lse of attention.h on compute capability 9.0.
//
// Shapes   packed sequences of any lengths, grouped heads; head size 64 or 128.
// Types    bf16, f16; sums in fp32, probabilities rounded to dtype before the second product.
// Lacks    every feature but a causal mask (top left), dropout.
// Stream   enqueued on ctx.stream; grid independent of lengths; never synchronises.
// Order    bitwise equal run to run on one device.
// Errors   unsupported with the reason of `fits` (so a build without the headers of CUTLASS says
//          that), invalid_argument, device.
Fit attention_forward_cute_fits(const Context& ctx, const AttentionArgs& args) noexcept;
void attention_forward_cute(const Context& ctx, const AttentionArgs& args);

// Fits where the build found CUTLASS. What differs with it: cute_cutlass.cu or cute_nocutlass.cpp.
Fit attention_cute_is_built() noexcept;
// Launchers; the arguments have been validated and fit.
void attention_forward_cute_d64(const Context& ctx, const AttentionArgs& args);
void attention_forward_cute_d128(const Context& ctx, const AttentionArgs& args);

}  // namespace saturate::kernels
