// SPDX-License-Identifier: Apache-2.0
// Products of f32 and f64 on the CPU whose every element is summed in one order, where OpenBLAS has none: its
// kernels for AVX2 sum a row in another order by its place among the rows.
#pragma once
#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels {

// Where matmul_blas_cpu keeps rows apart it is preferred.
Fit matmul_ordered_cpu_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// The same where OpenBLAS does or does not.
Fit matmul_ordered_fits(const MatmulArgs& args, bool blas_keeps_rows) noexcept;

// An element of D is a function of its row of op(A), its column of op(B) and its start: sums of kOrderedSteps terms each,
// ascending, added up one after the other. Bitwise equal for every m, n and number of threads. Takes about 1.2 MiB a
// thread, once. Errors: out_of_memory.
void matmul_ordered_cpu(const Context& ctx, const MatmulArgs& args);

constexpr int64_t kOrderedSteps = 256;

}  // namespace saturate::kernels
