// SPDX-License-Identifier: Apache-2.0
// What grouped_gemm.cpp chooses from. All take arguments that grouped_gemm() has checked: groups,
// n, k > 0, and rows > 0 except for weight_gradient.
#pragma once
#include <span>

#include "kernels/dispatch.h"
#include "kernels/gemm/grouped/grouped_gemm.h"

namespace saturate::kernels {

std::span<const Impl<GroupedGemmArgs>> grouped_gemm_impls();

// One BLAS product a group.
Fit grouped_gemm_cpu_fits(const Context& ctx, const GroupedGemmArgs& args) noexcept;
void grouped_gemm_cpu(const Context& ctx, const GroupedGemmArgs& args);

// Tiles of 64 x 64 on the ordinary cores: every GPU, every size, slow.
Fit grouped_gemm_plain_cuda_fits(const Context& ctx, const GroupedGemmArgs& args) noexcept;
void grouped_gemm_plain_cuda(const Context& ctx, const GroupedGemmArgs& args);

// Hopper's TMA and tensor cores: bf16 and f16, n and k multiples of 8.
Fit grouped_gemm_wgmma_cuda_fits(const Context& ctx, const GroupedGemmArgs& args) noexcept;
void grouped_gemm_wgmma_cuda(const Context& ctx, const GroupedGemmArgs& args);

}  // namespace saturate::kernels
