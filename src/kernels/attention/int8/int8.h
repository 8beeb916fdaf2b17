// SPDX-License-Identifier: Apache-2.0
// Attention forward with its scores in eight bits: q and k are rounded to integers on the way in.
// Dispatch never chooses it.
#pragma once
#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

constexpr int kInt8Keys = 64;  // keys that share a scale

// o and lse of attention.h for 16-bit q, k, v, where the scores are made of integers:
//
//   q[i] = a[i] Q[i],  k[j] - m = b[j / 64] K[j],  s[i][j] = scale a[i] b[j / 64] (Q[i] . K[j])
//
// with Q and K nearest integers in [-127, 127], a[i] = max |q[i]| / 127 for each row of a head,
// b = max |k - m| / 127 for each 64 keys of a sequence and head, and m the mean of a sequence's
// keys, which changes no probability (every score of a row moves by the same) and takes away the
// part that keys of trained models have in common. lse is that of the scores with m.
//
// Shapes   packed sequences of any lengths, grouped heads; head size 64 or 128.
// Types    bf16, f16; products of integers exact, probabilities rounded to dtype before the product
//          with v, sums in fp32. q and k finite; below 1e-12 they count as 1e-12 for the scales.
// Lacks    every feature but a causal mask (top left), dropout.
// Scratch  aligned to 256 bytes, attention_forward_int8_scratch() of them; overwritten.
// Error    of a score: at most scale (sum_d a/2 |k - m| + b/2 |q| + a b / 4); to o it goes times
//          the probability. Rounding of probabilities and of o as in 16 bits.
// Stream   enqueued on ctx.stream (four kernels); grid independent of lengths; never synchronises.
// Order    bitwise equal run to run on one device.
// Errors   unsupported (the reason of `fits`), invalid_argument (arguments, too little scratch),
//          device.
// Source   the mean and the scales: SageAttention, arXiv:2410.02367.
struct AttentionInt8Args {
  AttentionArgs attention;
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
};

Fit attention_forward_int8_fits(const Context& ctx, const AttentionArgs& args) noexcept;
int64_t attention_forward_int8_scratch(const AttentionArgs& args) noexcept;
void attention_forward_int8(const Context& ctx, const AttentionInt8Args& args);

}  // namespace saturate::kernels
