// SPDX-License-Identifier: Apache-2.0
// What the host does before a launch of the Hopper kernels for tf32 and fp8.
#pragma once
#include "kernels/gemm/matmul.h"
#include "kernels/gemm/wgmma/promoted_problem.h"

namespace saturate::kernels::wgmma {

// An operand (rows, k) of `type` with k innermost, as TMA sees it.
struct Operand {
  const void* data;
  CUtensorMapDataType type;
  int type_bytes;
  int64_t rows, k;
  int64_t ld;  // in values; of a multiple of 16 bytes
};

// Maps, tiles and sizes of a product a b^T; the caller adds the rest. Errors: device, when the
// driver refuses a map.
PromotedProblem promoted_problem(const Operand& a, const Operand& b);
// Blocks to launch it on.
int promoted_blocks(const Context& ctx, const PromotedProblem& p);

}  // namespace saturate::kernels::wgmma
