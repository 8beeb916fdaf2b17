// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/loss/cross_entropy.h"

namespace saturate::kernels {

void cross_entropy_cpu(const Context& ctx, const CrossEntropyArgs& args);
void cross_entropy_cuda(const Context& ctx, const CrossEntropyArgs& args);

void loss_totals_cpu(const Context& ctx, const LossTotalsArgs& args);
void loss_totals_cuda(const Context& ctx, const LossTotalsArgs& args);

}  // namespace saturate::kernels
