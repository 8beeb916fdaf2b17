// SPDX-License-Identifier: Apache-2.0
// The step between the two products of materialised attention.
#pragma once
#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// p[n][i][j] = exp(s[n][i][j] - lse[n][i]) for the keys j that query i sees, 0 for the others; lse
// is the logarithm of the sum of exp over those it sees. n counts (sequence, head).
//
// Shapes   s, p (sequences * heads * queries rows of `keys`, `stride` elements apart); lse (heads,
//          sequences * queries), as attention.h has it. queries, keys and rows are above 0.
// Types    s and lse in wide_of(dtype), p in dtype; p may be s where the types are equal.
// Stream   enqueued on ctx.stream; never synchronises.
// Order    bitwise equal run to run on one device: one block or thread sums a row.
// Errors   device; materialised.h has checked the arguments.
// Cost     reads of s and writes of p, once each.
// Source   the formula.
struct RowSoftmaxArgs {
  const void* s = nullptr;
  void* p = nullptr;
  void* lse = nullptr;
  int64_t sequences = 0, heads = 0, queries = 0, keys = 0, stride = 0;
  bool causal = false;  // query i sees keys 0..i
  DType dtype = DType::f32;
};

void row_softmax_cpu(const Context& ctx, const RowSoftmaxArgs& args);
void row_softmax_cuda(const Context& ctx, const RowSoftmaxArgs& args);

}  // namespace saturate::kernels
