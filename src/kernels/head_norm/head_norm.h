// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// An RMS norm of each head by itself, before rotary positions (Qwen 3):
//   y[r][h][c] = x[r][h][c] * weight[c] / sqrt(mean_c(x[r][h][c]^2) + eps)
//
// Shapes    x, y (rows, heads, head_size) with a stride in elements between rows; weight (head_size).
// Types     x, y in dtype; weight and arithmetic in wide_of(dtype).
// Aliasing  y may be x.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: one warp or thread sums a head, in a fixed order.
// Errors    invalid_argument for sizes, strides and pointers; unsupported when no implementation
//           fits; device.
// Cost      one read of x and one write of y.
// Source    Zhang and Sennrich, arXiv:1910.07467; of heads: Henry et al., arXiv:2010.04245.
struct HeadNormArgs {
  const void* x = nullptr;
  const void* weight = nullptr;
  void* y = nullptr;
  int64_t rows = 0, heads = 0, head_size = 0;
  int64_t x_stride = 0, y_stride = 0;
  DType dtype = DType::f32;
  float eps = 1e-6f;
};

void head_norm(const Context& ctx, const HeadNormArgs& args);

}  // namespace saturate::kernels
