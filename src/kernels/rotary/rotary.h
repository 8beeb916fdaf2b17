// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "runtime/context.h"

namespace saturate::kernels {

// Rotary positions, halves layout: for head channels j < D/2 and angle a = position * base^(-2j/D),
//   y[j] = x[j] cos a - x[j + D/2] sin a,   y[j + D/2] = x[j + D/2] cos a + x[j] sin a.
// inverse rotates by -a: it is the backward pass.
//
// factor > 1 slows rotations down, so that texts longer than those of training have no new angles.
// With original = 0 all of them: a / factor. Else, of a channel that turns n = original * base^(-2j/D)
// / 2 pi times over the `original` positions of training: n > high not at all, n < low by factor,
// and between them by a share, so that base^(-2j/D) becomes f (s + (1 - s) / factor) with
// s = (n - low) / (high - low) (Llama 3.1).
//
// Shapes    x, y (rows, heads, head_size) with strides in elements between rows; positions (rows).
// Types     dtype in and out; angles and arithmetic in wide_of(dtype).
// Aliasing  y may be x.
// Stream    enqueued on ctx.stream; never synchronises.
// Order     bitwise equal run to run: elementwise.
// Errors    invalid_argument for sizes, strides, pointers, an odd head_size and base; unsupported
//           when no implementation fits; device.
// Cost      one read of x and one write of y.
// Source    Su et al., arXiv:2104.09864; the halves layout is the one of Hugging Face's Llama;
//           factor: Chen et al., arXiv:2306.15595, and Meta's published Llama 3.1.
struct RotaryArgs {
  const void* x = nullptr;
  void* y = nullptr;
  const int32_t* positions = nullptr;
  int64_t rows = 0, heads = 0, head_size = 0;
  int64_t x_stride = 0, y_stride = 0;
  DType dtype = DType::f32;
  float base = 10000.0f;
  bool inverse = false;
  float factor = 1.0f, low = 1.0f, high = 4.0f;
  int64_t original = 0;
};

void rotary(const Context& ctx, const RotaryArgs& args);

}  // namespace saturate::kernels
