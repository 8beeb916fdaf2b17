// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

// y[i] = a[i] + b[i]; y may be a or b. count elements of dtype (any but i32).
struct AddArgs {
  const void* a = nullptr;
  const void* b = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
};
void add(const Context& ctx, const AddArgs& args);

// y[i] = x[i] converted with round to nearest even. Any pair of f64, f32, bf16, f16.
struct CastArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType x_type = DType::f32, y_type = DType::f32;
};
void cast(const Context& ctx, const CastArgs& args);

// bias_grad[c] (+)= sum_r x[r][c]: the gradient of a linear layer's bias.
// x (rows, cols) with ld, in dtype; out (cols) in wide_of(dtype); partial: scratch of
// column_sum_scratch_bytes. Two-stage sum, bitwise repeatable.
struct ColumnSumArgs {
  const void* x = nullptr;
  void* out = nullptr;
  void* partial = nullptr;
  int64_t rows = 0, cols = 0, ld = 0;
  DType dtype = DType::f32;
  bool accumulate = false;
};
void column_sum(const Context& ctx, const ColumnSumArgs& args);
int64_t column_sum_scratch_bytes(Device device, const ColumnSumArgs& args);

// y[i] = x[i] * keep(i) / (1 - p): dropout alone; backward is the same call on the gradient.
struct DropoutArgs {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t count = 0;
  DType dtype = DType::f32;
  float dropout = 0.0f;
  RngRef rng;
};
void dropout(const Context& ctx, const DropoutArgs& args);

}  // namespace saturate::kernels
