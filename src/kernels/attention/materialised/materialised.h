// SPDX-License-Identifier: Apache-2.0
// Attention with its scores in memory: the baseline of the ladder. Dispatch never chooses it.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// Three steps for o and lse of attention.h, each the best there is for it: one batched product a
// sequence for the scores (matmul.h), one kernel for the softmax of every row, one batched product
// a sequence for o.
//
// Only for sequences of one length each for queries and keys (q_rows = sequences * max_q, k_rows =
// sequences * max_k, and the offsets say so too, which is not checked), as many key heads as query
// heads, no features but a causal mask (top left), no dropout. Products compute what the mask
// hides.
//
// Types    f32, f16, bf16 on a GPU; f32, f64 on the CPU. Scores in wide_of(dtype), probabilities
//          rounded to dtype before the second product.
// Scratch  aligned to 256 bytes; overwritten.
// Stream   enqueued on ctx.stream; never synchronises; uses ctx.workspace as matmul does.
// Order    bitwise equal run to run on one device.
// Errors   of `fits` as unsupported; invalid_argument for the arguments or too little scratch.
struct MaterialisedArgs {
  AttentionArgs attention;
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
};

Fit attention_forward_materialised_fits(const Context& ctx, const AttentionArgs& args) noexcept;
// 0 for no rows.
int64_t attention_forward_materialised_scratch(const AttentionArgs& args) noexcept;
void attention_forward_materialised(const Context& ctx, const MaterialisedArgs& args);

}  // namespace saturate::kernels
