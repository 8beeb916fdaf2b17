// SPDX-License-Identifier: Apache-2.0
// What norm.cpp shares with the implementations.
#pragma once
#include "kernels/norm/norm.h"

namespace saturate::kernels {

// Groups of rows whose column sums are made in the first stage; partial is (groups, 2 or 3, cols). They
// are constants, so that sums do not depend on the number of threads or multiprocessors.
constexpr int64_t kNormCpuGroups = 32;
constexpr int64_t kNormCudaBlocks = 132;  // the multiprocessors of an H200
// Blocks for each of them that sum rows of so many columns, of 32 bits (`wide`) or 16 (LADDER.md).
constexpr int64_t norm_blocks_each(int64_t cols, bool wide) noexcept {
  if (cols <= 256) return 6;
  if (cols > 1024) return 2;
  if (wide) return cols > 512 && cols <= 768 ? 3 : 4;
  return cols <= 512 ? 3 : cols <= 768 ? 4 : 2;
}
constexpr int64_t kNormMaxCols = int64_t{1} << 20;

SAT_HD bool sums_columns(const NormBackwardArgs& a) {
  return a.d_weight != nullptr || a.d_bias != nullptr || a.d_branch_sum != nullptr;
}

void norm_forward_cpu(const Context& ctx, const NormForwardArgs& args);
void norm_backward_cpu(const Context& ctx, const NormBackwardArgs& args);
void norm_forward_cuda(const Context& ctx, const NormForwardArgs& args);
void norm_backward_cuda(const Context& ctx, const NormBackwardArgs& args);

}  // namespace saturate::kernels
