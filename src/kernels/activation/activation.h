// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "runtime/context.h"

namespace saturate::kernels {

// identity: dropout alone.
enum class ActivationKind : uint8_t { relu, gelu_tanh, gelu_erf, silu, identity };

// y[r][c] = drop(f(x[r][c])), or gated: y[r][c] = drop(f(x[r][c]) * x[r][cols + c])
//
// Shapes    y (rows, cols); x (rows, cols), gated (rows, 2 * cols): gate first, then up; dense.
// Types     dtype in and out, arithmetic in wide_of(dtype).
// Dropout   element of y as RngRef numbers it: block = element / 4, word = element % 4; times
//           1/(1-p).
// Aliasing  none.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: elementwise.
// Errors    invalid_argument for sizes, pointers and dropout; unsupported when no implementation
//           fits; device.
// Cost      memory traffic: x read and y written once; backward reads x and d_y and writes d_x.
// Source    Hendrycks and Gimpel, arXiv:1606.08415; Shazeer, arXiv:2002.05202 (gated).
struct ActivationArgs {
  ActivationKind kind = ActivationKind::relu;
  bool gated = false;
  const void* x = nullptr;
  void* y = nullptr;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::f32;
  float dropout = 0.0f;
  RngRef rng;
  // In the device's memory: how many rows, from the first on, hold anything. Of the others nothing
  // is read or written. Null: all do.
  const int32_t* used_rows = nullptr;
};

// d_x from d_y and the forward's x (recomputes f); d_x has x's shape, d_y that of y.
struct ActivationBackwardArgs {
  ActivationArgs forward;  // y is not read and may be null
  const void* d_y = nullptr;
  void* d_x = nullptr;
};

void activation_forward(const Context& ctx, const ActivationArgs& args);
void activation_backward(const Context& ctx, const ActivationBackwardArgs& args);

}  // namespace saturate::kernels
