// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/optimizer/optimizer.h"

namespace saturate::kernels {

// gradient_norm cuts the gradients into this many equal parts at most, each summed in a fixed
// order: enough to fill any GPU, and the same on every device.
constexpr int64_t kNormParts = 1024;
constexpr int64_t kNormShortestPart = 4096;

constexpr int64_t norm_parts(int64_t count) {
  const int64_t parts = (count + kNormShortestPart - 1) / kNormShortestPart;
  return parts < 1 ? 1 : (parts > kNormParts ? kNormParts : parts);
}

void gradient_norm_cpu(const Context& ctx, const GradientNormArgs& args);
void gradient_norm_cuda(const Context& ctx, const GradientNormArgs& args);
void adamw_cpu(const Context& ctx, const AdamWArgs& args);
void adamw_cuda(const Context& ctx, const AdamWArgs& args);
void finish_step_cpu(const Context& ctx, const FinishStepArgs& args);
void finish_step_cuda(const Context& ctx, const FinishStepArgs& args);
void batch_intake_cpu(const Context& ctx, const BatchIntakeArgs& args);
void batch_intake_cuda(const Context& ctx, const BatchIntakeArgs& args);

}  // namespace saturate::kernels
