// SPDX-License-Identifier: Apache-2.0
// Direct loops: correct and in order, not fast. Each output element belongs to one thread, so that
// the result does not depend on how many there are.
#include "kernels/conv/conv2d_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

// Position in the input that tap `tap` of output position `at` reads, or -1 in the padding.
int64_t input_at(int64_t at, int64_t tap, const Conv2dAxis& a, int64_t size) {
  const int64_t i = at * a.stride - a.padding + tap * a.dilation;
  return i >= 0 && i < size ? i : -1;
}
// Output position whose tap `tap` reads input position `at`, or -1.
int64_t output_at(int64_t at, int64_t tap, const Conv2dAxis& a, int64_t size) {
  const int64_t i = at + a.padding - tap * a.dilation;
  return i >= 0 && i % a.stride == 0 && i / a.stride < size ? i / a.stride : -1;
}

template <class T>
void forward(const Conv2dArgs& z) {
  const T* x = static_cast<const T*>(z.x);
  const T* w = static_cast<const T*>(z.w);
  const T* bias = static_cast<const T*>(z.bias);
  T* y = static_cast<T*>(z.y);
  const int64_t rows = z.output_height(), cols = z.output_width(), c_count = z.channels;
  const int64_t taps = z.filter_height * z.filter_width;
  parallel_for(z.batch * rows * cols, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const int64_t b = pixel / (rows * cols), p = pixel / cols % rows, q = pixel % cols;
      for (int64_t f = 0; f < z.filters; ++f) {
        T sum = 0;
        for (int64_t tap = 0; tap < taps; ++tap) {
          const int64_t h = input_at(p, tap / z.filter_width, z.vertical, z.height);
          const int64_t v = input_at(q, tap % z.filter_width, z.horizontal, z.width);
          if (h < 0 || v < 0) continue;
          const T* from = x + ((b * z.height + h) * z.width + v) * c_count;
          const T* weight = w + (f * taps + tap) * c_count;
          for (int64_t c = 0; c < c_count; ++c) sum += from[c] * weight[c];
        }
        y[pixel * z.filters + f] = sum + (bias != nullptr ? bias[f] : T{0});
      }
    }
  });
}

template <class T>
void backward_input(const Conv2dBackwardArgs& a) {
  const Conv2dArgs& z = a.forward;
  const T* w = static_cast<const T*>(z.w);
  const T* d_y = static_cast<const T*>(a.d_y);
  T* d_x = static_cast<T*>(a.d_x);
  const int64_t rows = z.output_height(), cols = z.output_width(), c_count = z.channels;
  const int64_t taps = z.filter_height * z.filter_width;
  parallel_for(z.batch * z.height * z.width, 1, [&](int64_t begin, int64_t end) {
    for (int64_t pixel = begin; pixel < end; ++pixel) {
      const int64_t b = pixel / (z.height * z.width);
      T* to = d_x + pixel * c_count;
      for (int64_t c = 0; c < c_count; ++c) to[c] = 0;
      for (int64_t tap = 0; tap < taps; ++tap) {
        const int64_t p =
            output_at(pixel / z.width % z.height, tap / z.filter_width, z.vertical, rows);
        const int64_t q = output_at(pixel % z.width, tap % z.filter_width, z.horizontal, cols);
        if (p < 0 || q < 0) continue;
        const T* from = d_y + ((b * rows + p) * cols + q) * z.filters;
        for (int64_t f = 0; f < z.filters; ++f) {
          const T* weight = w + (f * taps + tap) * c_count;
          for (int64_t c = 0; c < c_count; ++c) to[c] += from[f] * weight[c];
        }
      }
    }
  });
}

template <class T>
void backward_weight(const Conv2dBackwardArgs& a) {
  const Conv2dArgs& z = a.forward;
  const T* x = static_cast<const T*>(z.x);
  const T* d_y = static_cast<const T*>(a.d_y);
  T* d_w = static_cast<T*>(a.d_w);
  const int64_t rows = z.output_height(), cols = z.output_width(), c_count = z.channels;
  const int64_t taps = z.filter_height * z.filter_width;
  parallel_for(z.filters * taps, 1, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t f = at / taps, tap = at % taps;
      T* to = d_w + at * c_count;
      for (int64_t c = 0; c < c_count; ++c) to[c] = 0;
      for (int64_t pixel = 0; pixel < z.batch * rows * cols; ++pixel) {
        const int64_t b = pixel / (rows * cols);
        const int64_t h = input_at(pixel / cols % rows, tap / z.filter_width, z.vertical, z.height);
        const int64_t v = input_at(pixel % cols, tap % z.filter_width, z.horizontal, z.width);
        if (h < 0 || v < 0) continue;
        const T factor = d_y[pixel * z.filters + f];
        const T* from = x + ((b * z.height + h) * z.width + v) * c_count;
        for (int64_t c = 0; c < c_count; ++c) to[c] += factor * from[c];
      }
    }
  });
}

}  // namespace

Fit conv2d_forward_cpu_fits(const Context&, const Conv2dArgs& x) noexcept {
  if (x.dtype != DType::f32 && x.dtype != DType::f64) return {"the CPU convolves f32 and f64 only"};
  return {};
}
Fit conv2d_backward_cpu_fits(const Context& ctx, const Conv2dBackwardArgs& b) noexcept {
  return conv2d_forward_cpu_fits(ctx, b.forward);
}

void conv2d_forward_cpu(const Context&, const Conv2dArgs& x) {
  x.dtype == DType::f64 ? forward<double>(x) : forward<float>(x);
}

void conv2d_backward_cpu(const Context&, const Conv2dBackwardArgs& b) {
  const bool wide = b.forward.dtype == DType::f64;
  if (b.d_x != nullptr) wide ? backward_input<double>(b) : backward_input<float>(b);
  if (b.d_w != nullptr) wide ? backward_weight<double>(b) : backward_weight<float>(b);
}

}  // namespace saturate::kernels
