// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "runtime/context.h"

namespace saturate::kernels {

// Second stage of column sums on the GPU: out[o][c] (+)= sum over g of partial[g][o][c], in order
// of g.
//
// Shapes    partial (groups, outs, cols) fp32, outs 1 or 2; out[o] (cols) fp32; groups may be 0.
//           A null out is skipped. Order: bitwise repeatable.
struct FoldColumnsArgs {
  const float* partial = nullptr;
  int64_t groups = 0, outs = 1, cols = 0;
  float* out[2] = {nullptr, nullptr};
  bool accumulate = false;
};
void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& args);

}  // namespace saturate::kernels
