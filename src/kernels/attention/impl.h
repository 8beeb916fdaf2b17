// SPDX-License-Identifier: Apache-2.0
// The implementations behind attention.h, best first; for dispatch and for tests that try each one.
#pragma once
#include <span>

#include "kernels/attention/attention.h"
#include "kernels/dispatch.h"

namespace saturate::kernels {

std::span<const Impl<AttentionArgs>> attention_forward_impls() noexcept;
std::span<const Impl<AttentionBackwardArgs>> attention_backward_impls() noexcept;

// Throw invalid_argument when the arguments break attention.h's rules.
void check_attention(const char* op, const AttentionArgs& args);
void check_attention(const char* op, const AttentionBackwardArgs& args);

// The arguments as launchers take them: the rate of dropout that is drawn, a multiple of 2^-15, so
// that what is kept is scaled by its very inverse, and rows of dropout's numbers counted from that
// of head 0 and row 0.
AttentionArgs attention_resolved(AttentionArgs args);

// Launchers; the arguments have been validated, fit and been resolved.
void attention_forward_cpu(const Context& ctx, const AttentionArgs& args);
void attention_backward_cpu(const Context& ctx, const AttentionBackwardArgs& args);
// Any GPU, f32, f16 or bf16, head size up to 256: fp32 arithmetic without tensor cores.
void attention_forward_plain_cuda(const Context& ctx, const AttentionArgs& args);
void attention_backward_plain_cuda(const Context& ctx, const AttentionBackwardArgs& args);
// Compute capability 8.0 and later, f16 or bf16, head size 32 or 64: tensor cores.
void attention_forward_mma_cuda(const Context& ctx, const AttentionArgs& args);
void attention_backward_mma_cuda(const Context& ctx, const AttentionBackwardArgs& args);
// The same, whole sequences in one kernel; meant for a mean length up to 64.
void attention_backward_short_cuda(const Context& ctx, const AttentionBackwardArgs& args);
// 16-byte copies need every row of every head to start at a multiple of 8 16-bit elements.
inline bool attention_rows_aligned(const void* p, int64_t stride) noexcept {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 8 == 0;
}
// Kernels whose grid's second dimension counts heads, its first (query or key tiles of 16 rows or
// more) x (sequences + 1).
Fit attention_fits_grid(const AttentionArgs& args) noexcept;
// Rows for each sequence, of the side with more of them, at most the longest.
int64_t attention_mean_length(const AttentionArgs& args) noexcept;
// First step of both backward passes: delta[h][i] = sum_d d_o[i][h][d] o[i][h][d]; gradients of the
// rows outside every sequence become zero.
void attention_backward_prepare_cuda(const Context& ctx, const AttentionBackwardArgs& args);

}  // namespace saturate::kernels
