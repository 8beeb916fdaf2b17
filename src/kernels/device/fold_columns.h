// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "runtime/context.h"

namespace saturate::kernels {

// Second stage of column sums on the GPU: out[o][c] (+)= sum over g of partial[g][o][c], in order
// of g.
//
// Shapes    partial (groups, outs, cols), outs 1 to 3; out[o] (cols); groups may be 0. A null out
//           is skipped.
// Types     fp32.
// Stream    enqueued on ctx.stream, behind what writes partial.
// Order     bitwise equal run to run: one thread adds a column, in order of g.
// Errors    device; the callers have checked the arguments.
// Cost      one read of partial.
// Source    the second half of column_sum (elementwise.h) and norm_backward (norm.h).
struct FoldColumnsArgs {
  const float* partial = nullptr;
  int64_t groups = 0, outs = 1, cols = 0;
  float* out[3] = {};
  bool accumulate[3] = {};
};
void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& args);

// Second stages that wait: their launches take longer than their work, and nothing in a backward
// pass reads what they write.
struct FoldList {
  std::vector<FoldColumnsArgs> jobs;
};
// At once, or when the list is run.
void fold_columns_cuda(const Context& ctx, const FoldColumnsArgs& args, FoldList* later);
// Runs the list in one launch for every 256 of it, and empties it. No two jobs may have an out in common. The same bits as
// one after the other.
void fold_columns_cuda(const Context& ctx, FoldList& list);

}  // namespace saturate::kernels
