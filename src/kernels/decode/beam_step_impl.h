// SPDX-License-Identifier: Apache-2.0
// What beam_step.cpp shares with the implementations.
#pragma once
#include "kernels/decode/beam_step.h"

namespace saturate::kernels {

void beam_step_cpu(const Context& ctx, const BeamStepArgs& args);
void beam_step_cuda(const Context& ctx, const BeamStepArgs& args);

}  // namespace saturate::kernels
