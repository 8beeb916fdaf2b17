// SPDX-License-Identifier: Apache-2.0
// Attention forward in eight bits: e4m3 operands on tensor cores. Dispatch never chooses it.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

// o and lse of attention.h for q = q_scales[h] Q, k = k_scales[g] K, v = v_scales[g] V, where Q, K
// and V are e4m3 (4 bits of exponent, 3 of mantissa, up to 448, no infinities) and g is the key
// head of query head h.
//
// attention: q, k and v point to e4m3, o to bf16, which dtype says; strides count elements. Head
//            size 64 or 128; q, k, v at 16 bytes and their strides multiples of 16; o and its
//            stride even. No features but a causal mask (top left), no dropout.
// scales     (heads), (kv_heads), (kv_heads) in device memory, above 0; null means 1. For per
//            tensor scales repeat one number.
//
// Error     Q.K are summed in fp32 or in what the tensor cores keep, at least 13 bits of the
//           largest product of 32; probabilities are rounded to e4m3 at 256 times their share of
//           the largest so far: a relative 2^-4, or 2^-18 of the largest for small ones. So an
//           element of o is within sum_j (2^-4 p_j + 2^-18 e_j) |v_j| and the rounding of bf16,
//           with e_j = 1 / sum_n exp(s_n - max), beside the errors of the scores.
// Stream    enqueued on ctx.stream; grid independent of lengths; never synchronises.
// Order     bitwise equal run to run on one device.
// Errors    unsupported (no GPU of compute capability 9.0 or later, a feature, a size),
//           invalid_argument, device.
struct AttentionFp8Args {
  AttentionArgs attention;
  const float* q_scales = nullptr;
  const float* k_scales = nullptr;
  const float* v_scales = nullptr;
};

Fit attention_forward_fp8_fits(const Context& ctx, const AttentionFp8Args& args) noexcept;
void attention_forward_fp8(const Context& ctx, const AttentionFp8Args& args);

// Launcher; the arguments have been validated and fit.
void attention_forward_fp8_cuda(const Context& ctx, const AttentionFp8Args& args);

}  // namespace saturate::kernels
