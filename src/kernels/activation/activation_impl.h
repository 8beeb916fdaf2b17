// SPDX-License-Identifier: Apache-2.0
// What activation.cpp shares with the implementations.
#pragma once
#include "kernels/activation/activation.h"

namespace saturate::kernels {

// gelu_tanh(x) = x / 2 (1 + tanh(k (x + c x^3))) = x sigmoid(2 k (x + c x^3)), k = sqrt(2 / pi).
constexpr double kGeluTwoK = 1.5957691216057307117597842397375;
constexpr double kGeluCubic = 0.044715;

void activation_forward_cpu(const Context& ctx, const ActivationArgs& args);
void activation_backward_cpu(const Context& ctx, const ActivationBackwardArgs& args);
void activation_forward_cuda(const Context& ctx, const ActivationArgs& args);
void activation_backward_cuda(const Context& ctx, const ActivationBackwardArgs& args);

}  // namespace saturate::kernels
