// SPDX-License-Identifier: Apache-2.0
// What conv2d.cpp chooses from; arguments have been checked and no size is 0.
#pragma once
#include "base/error.h"
#include "kernels/conv/conv2d.h"

namespace saturate::kernels {

Fit conv2d_forward_cpu_fits(const Context& ctx, const Conv2dArgs& args) noexcept;
Fit conv2d_backward_cpu_fits(const Context& ctx, const Conv2dBackwardArgs& args) noexcept;
void conv2d_forward_cpu(const Context& ctx, const Conv2dArgs& args);
void conv2d_backward_cpu(const Context& ctx, const Conv2dBackwardArgs& args);

// Implicit GEMM: bf16 and f16 on tensor cores, f32 on the plain units.
Fit conv2d_forward_cuda_fits(const Context& ctx, const Conv2dArgs& args) noexcept;
Fit conv2d_backward_cuda_fits(const Context& ctx, const Conv2dBackwardArgs& args) noexcept;
void conv2d_forward_cuda(const Context& ctx, const Conv2dArgs& args);
void conv2d_backward_cuda(const Context& ctx, const Conv2dBackwardArgs& args);

}  // namespace saturate::kernels
