// SPDX-License-Identifier: Apache-2.0
// What relative_bias.cpp shares with the implementations.
#pragma once
#include "kernels/relative_bias/relative_bias.h"

namespace saturate::kernels {

void relative_bias_cpu(const Context& ctx, const RelativeBiasArgs& args);
void relative_bias_cuda(const Context& ctx, const RelativeBiasArgs& args);

}  // namespace saturate::kernels
