// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/optimizer/optimizer.h"

namespace saturate::kernels {

void gradient_norm_blocks_cpu(const Context& ctx, const GradientNormArgs& args);
void gradient_norm_blocks_cuda(const Context& ctx, const GradientNormArgs& args);
void gradient_norm_join_cpu(const Context& ctx, const GradientNormArgs& args);
void gradient_norm_join_cuda(const Context& ctx, const GradientNormArgs& args);
void adamw_cpu(const Context& ctx, const AdamWArgs& args);
void adamw_cuda(const Context& ctx, const AdamWArgs& args);
void finish_step_cpu(const Context& ctx, const FinishStepArgs& args);
void finish_step_cuda(const Context& ctx, const FinishStepArgs& args);
void batch_intake_cpu(const Context& ctx, const BatchIntakeArgs& args);
void batch_intake_cuda(const Context& ctx, const BatchIntakeArgs& args);

}  // namespace saturate::kernels
