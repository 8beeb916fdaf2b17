// SPDX-License-Identifier: Apache-2.0
// Operations element by element, and sums of columns. For all of them:
//
// Types     dtype is f64, f32, bf16 or f16; f64 on the CPU only, 16 bits on a GPU only (cast: any).
//           Arithmetic in wide_of(dtype).
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run.
// Errors    invalid_argument for sizes, pointers, types and dropout; unsupported when no
//           implementation fits; device.
// Cost      memory traffic: every operand is read once and every result written once.
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

struct FoldList;  // device/fold_columns.h

// y[i] = a[i] + b[i], or to every row of a matrix the same: y[i] = a[i] + b[i % b_count]
//
// Shapes    a, y (count); b (b_count), which divides count; 0: as many as a.
// Aliasing  y may be a or b.
// Source    the formula.
struct AddArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
  int64_t b_count = 0;
};
void add(const Context& ctx, const AddArgs& args);

// y[i] = cap * tanh(x[i] / cap): logits that cannot grow beyond cap.
//
// Shapes    x, y (count).
// Aliasing  y may be x.
// Source    Gemma 2, arXiv:2408.00118.
struct SoftCapArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
  float cap = 1.0f;  // positive
};
void soft_cap(const Context& ctx, const SoftCapArgs& args);

// y[i] = x[i] converted with round to nearest even. Any pair of f64, f32, bf16, f16.
//
// Shapes    x, y (count).
// Aliasing  none.
// Source    IEEE 754-2019, 4.3.1; bf16 likewise.
struct CastArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType x_type = DType::f32, y_type = DType::f32;
};
void cast(const Context& ctx, const CastArgs& args);

// out[c] (+)= sum_r x[r][c]: the gradient of a linear layer's bias.
//
// Shapes    x (rows, cols) with leading dimension ld, in dtype; out (cols) in wide_of(dtype);
//           partial: scratch of column_sum_scratch_bytes.
// Aliasing  none.
// Order     two stages, each in a fixed order, no atomics.
// Source    the formula.
struct ColumnSumArgs {
  const void* x = nullptr;
  void* out = nullptr;
  void* partial = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
  FoldList* later = nullptr;  // on a GPU: takes the second stage, and partial must live on
};
void column_sum(const Context& ctx, const ColumnSumArgs& args);
int64_t column_sum_scratch_bytes(Device device, const ColumnSumArgs& args);

}  // namespace saturate::kernels
