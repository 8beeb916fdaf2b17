// SPDX-License-Identifier: Apache-2.0
// Products of f32 operands on the CPU that round them to bf16 as they are packed, where
// MatmulArgs::allow_bf16 says so: with AVX512-BF16, sums in f32.
#pragma once
#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels {

// Whether this processor, and the system, have AVX512-BF16.
bool cpu_has_bf16() noexcept;

Fit matmul_bf16_cpu_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// The same of a processor that has the instructions or not.
Fit matmul_bf16_fits(const MatmulArgs& args, bool has_bf16) noexcept;

// An element of D is one chain over ascending k: bitwise equal for every number of threads. Takes
// about 0.6 MiB a thread, once. Errors: out_of_memory.
void matmul_bf16_cpu(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
