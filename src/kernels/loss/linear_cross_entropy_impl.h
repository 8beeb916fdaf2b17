// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/loss/linear_cross_entropy.h"

namespace saturate::kernels {

// The largest exponent to the base 2 that is taken: 69.3 nats. Sums over 2^27 classes stay below 2^127.
constexpr float kMostExponent = 100.0f;
// Rows of x whose sums are one row of LossRows::x_partial.
constexpr int kLossGroupRows = 64;

void linear_cross_entropy_cpu(const Context& ctx, const LinearCrossEntropyArgs& args);
void linear_cross_entropy_backward_cpu(const Context& ctx,
                                       const LinearCrossEntropyBackwardArgs& args);

// On Hopper (gemm/wgmma/wgmma_loss.h).
void linear_cross_entropy_wgmma_cuda(const Context& ctx, const LinearCrossEntropyArgs& args);
void linear_cross_entropy_backward_wgmma_cuda(const Context& ctx,
                                              const LinearCrossEntropyBackwardArgs& args);
int64_t linear_cross_entropy_wgmma_scratch_bytes(const LinearCrossEntropyArgs& args);

// What the launches around the products share: of a row (target_logit: z[t][target], +infinity without a
// loss, NaN for a target that is no class) and of tiles of columns (tile_sums, (tiles, rows)).
struct LossRows {
  float *target_logit, *tile_sums, *class_sum, *x_partial, *x_sum;
  void* column_scratch;  // of column_sum() over w
  int64_t tiles, x_groups;
};
void launch_target_logits(const Context& ctx, const LinearCrossEntropyArgs& args,
                          const LossRows& rows);
void launch_loss_rows(const Context& ctx, const LinearCrossEntropyArgs& args, const LossRows& rows);

}  // namespace saturate::kernels
