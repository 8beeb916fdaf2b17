// SPDX-License-Identifier: Apache-2.0
// What mean_logits.cpp shares with the implementations.
#pragma once
#include "kernels/decode/mean_logits.h"

namespace saturate::kernels {

void mean_logits_cpu(const Context& ctx, const MeanLogitsArgs& args);
void mean_logits_cuda(const Context& ctx, const MeanLogitsArgs& args);

}  // namespace saturate::kernels
