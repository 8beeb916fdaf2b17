// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>

#include "kernels/dispatch.h"
#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// D_i = alpha_i A_i^T B_i + beta_i C_i of several independent products in one launch on Hopper's
// tensor cores: weight gradients, each of too few tiles for the chip. Where epilogue.column_sum is
// given also column_sum_i[m] (+)= sum over k of A_i[k][m], the bias's gradient.
//
// Shapes    as matmul() with ta = yes, tb = no, one product each; at most kMostInMatmulGroup of them,
//           of any sizes. column_sum (m); the epilogue has nothing else.
// Types     A, B bf16 or f16, alike in all products; C, D, column_sum f32. Sums in fp32, unsplit.
// Aliasing  D_i may be C_i. No result may be an operand or a result of another product.
// Stream    enqueued on ctx.stream; never synchronises; no workspace.
// Order     bitwise equal run to run; a product's result does not depend on what it is grouped with.
// Errors    invalid_argument for types that differ or too many products; unsupported for one that
//           matmul_group_fits() refuses; device.
// Cost      that of all units of 256 x 256 results, in rounds of matmul_group_places().
// Source    the formula.
void matmul_group(const Context& ctx, std::span<const MatmulArgs> products);

// Of one product: why it cannot be in a group.
Fit matmul_group_fits(const Context& ctx, const MatmulArgs& product) noexcept;
// Units that run at a time; 0 where there is no such kernel.
int64_t matmul_group_places(const Context& ctx) noexcept;

constexpr int kMostInMatmulGroup = 24;     // 9.5 of the 32 KiB that a kernel's arguments may have
constexpr int64_t kMatmulGroupUnit = 256;  // rows and columns of a unit
constexpr int64_t matmul_group_units(const MatmulArgs& x) noexcept {
  return (x.m + kMatmulGroupUnit - 1) / kMatmulGroupUnit *
         ((x.n + kMatmulGroupUnit - 1) / kMatmulGroupUnit);
}

// matmul_group() of checked products on Hopper.
void matmul_group_cuda(const Context& ctx, std::span<const MatmulArgs> products);

}  // namespace saturate::kernels
