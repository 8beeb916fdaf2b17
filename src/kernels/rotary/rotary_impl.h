// SPDX-License-Identifier: Apache-2.0
// What rotary.cpp shares with the implementations.
#pragma once
#include "kernels/rotary/rotary.h"

namespace saturate::kernels {

void rotary_cpu(const Context& ctx, const RotaryArgs& args);
void rotary_cuda(const Context& ctx, const RotaryArgs& args);

}  // namespace saturate::kernels
