// SPDX-License-Identifier: Apache-2.0
// Rows on their way to the experts and back. slots[r][j] is where row r lies for its j-th expert
// among rows sorted by expert (routing.h), -1: nowhere. Two choices never share a slot.
//
// Types     x, y and their gradients in dtype; gates and d_gates in wide_of(dtype), sums as well.
// Aliasing  none.
// Stream    enqueued on ctx.stream; capturable; never synchronises.
// Order     bitwise equal run to run: the k terms of a row are added in the order of j.
// Errors    invalid_argument for sizes and pointers; unsupported when no implementation fits;
//           device.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// y[slots[r][j]] = x[r]
//
// Shapes    x (rows, cols); slots (rows, k); y (at most rows * k, cols). Rows of y that no slot names
//           stay as they are.
// Cost      x read once, each copy written.
// Source    Gale et al., arXiv:2211.15841.
struct DispatchRowsArgs {
  const void* x = nullptr;
  const int32_t* slots = nullptr;
  void* y = nullptr;
  int64_t rows = 0, cols = 0, k = 1;
  DType dtype = DType::f32;
};
void dispatch_rows(const Context& ctx, const DispatchRowsArgs& args);

// d_x[r] = sum_j d_y[slots[r][j]]; d_x (rows, cols), written throughout. forward.x, y are not read.
struct DispatchRowsBackwardArgs {
  DispatchRowsArgs forward;
  const void* d_y = nullptr;
  void* d_x = nullptr;
};
void dispatch_rows_backward(const Context& ctx, const DispatchRowsBackwardArgs& args);

// y[r] = sum_j gates[r][j] * x[slots[r][j]]
//
// Shapes    x (at most rows * k, cols), gates (rows, k), y (rows, cols), written throughout.
// Cost      each row of x that a slot names read once, y written.
// Source    Shazeer et al., arXiv:1701.06538, equation 1.
struct CombineRowsArgs {
  const void* x = nullptr;
  const int32_t* slots = nullptr;
  const void* gates = nullptr;
  void* y = nullptr;
  int64_t rows = 0, cols = 0, k = 1;
  DType dtype = DType::f32;
};
void combine_rows(const Context& ctx, const CombineRowsArgs& args);

// d_x[slots[r][j]] = gates[r][j] * d_y[r];  d_gates[r][j] = x[slots[r][j]] . d_y[r], 0 without slot.
// d_x as x: rows that no slot names stay as they are. d_gates (rows, k), written throughout.
struct CombineRowsBackwardArgs {
  CombineRowsArgs forward;
  const void* d_y = nullptr;
  void* d_x = nullptr;
  void* d_gates = nullptr;
};
void combine_rows_backward(const Context& ctx, const CombineRowsBackwardArgs& args);

}  // namespace saturate::kernels
