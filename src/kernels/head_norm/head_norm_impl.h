// SPDX-License-Identifier: Apache-2.0
// What head_norm.cpp shares with the implementations.
#pragma once
#include "kernels/head_norm/head_norm.h"

namespace saturate::kernels {

void head_norm_cpu(const Context& ctx, const HeadNormArgs& args);
void head_norm_cuda(const Context& ctx, const HeadNormArgs& args);

}  // namespace saturate::kernels
