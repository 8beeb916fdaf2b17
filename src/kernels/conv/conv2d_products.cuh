// SPDX-License-Identifier: Apache-2.0
// The three products, through launch() of conv2d_mma.cuh or conv2d_plain.cuh, whichever the
// including source brought.
#pragma once
#include "kernels/conv/conv2d_gemm.h"
#include "kernels/conv/conv2d_sources.cuh"

namespace saturate::kernels::conv {

template <class T>
DenseOut<T> dense_out(void* d, const void* bias, int rows, int cols) {
  DenseOut<T> out{};
  out.row.c = d;
  out.row.d = d;
  out.row.bias = bias;
  out.row.ldc = out.row.ldd = out.row.n = cols;
  out.row.alpha = 1.0f;
  out.row.d_is_f32 = std::is_same_v<T, float>;
  out.row.wide = cols % 8 == 0 && aligned16(d, bias);
  out.rows = rows;
  return out;
}

// Every eight channels can be read in 16-byte accesses.
inline bool wide(const void* p, const void* q, int channels_p, int channels_q) {
  return aligned16(p, q) && channels_p % 8 == 0 && channels_q % 8 == 0;
}

template <class T>
void forward(const Context& ctx, const Conv2dArgs& x) {
  const Shape s = shape_of(x);
  const int pixels = s.batch * s.rows * s.cols, depth = s.taps * s.c8;
  launch<T, Storage::by_depth, Storage::by_depth>(
      ctx, InputPatches<T>{static_cast<const T*>(x.x), s},
      WeightByFilter<T>{static_cast<const T*>(x.w), s},
      dense_out<T>(x.y, x.bias, pixels, s.filters), pixels, s.filters, depth, {1, depth, 0},
      wide(x.x, x.w, s.channels, s.channels));
}

template <class T>
void input_gradient(const Context& ctx, const Conv2dBackwardArgs& b) {
  const Shape s = shape_of(b.forward);
  const int pixels = s.batch * s.height * s.width, depth = s.taps * s.f8;
  launch<T, Storage::by_depth, Storage::by_extent>(
      ctx, OutputPatches<T>{static_cast<const T*>(b.d_y), s},
      WeightByTap<T>{static_cast<const T*>(b.forward.w), s},
      dense_out<T>(b.d_x, nullptr, pixels, s.channels), pixels, s.channels, depth, {1, depth, 0},
      wide(b.d_y, b.forward.w, s.filters, s.channels));
}

template <class T>
void weight_gradient(const Context& ctx, const Conv2dBackwardArgs& b, const Split& split) {
  const Shape s = shape_of(b.forward);
  const int pixels = s.batch * s.rows * s.cols, columns = s.taps * s.c8;
  launch<T, Storage::by_extent, Storage::by_extent>(
      ctx, OutputGradient<T>{static_cast<const T*>(b.d_y), s},
      InputPatches<T>{static_cast<const T*>(b.forward.x), s},
      PartialOut{static_cast<float*>(ctx.workspace), s.filters, columns}, s.filters, columns,
      pixels, split, wide(b.d_y, b.forward.x, s.filters, s.channels));
}

}  // namespace saturate::kernels::conv
