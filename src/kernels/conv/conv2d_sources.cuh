// SPDX-License-Identifier: Apache-2.0
// A convolution as three products, without the matrices that would make it one: the sources fetch
// eight consecutive channels at a time from where they lie.
//
//   forward          y    (pixels of y, filters)  = patches of x   times w
//   input gradient   d_x  (pixels of x, channels) = patches of d_y times w, by taps and filters
//   weight gradient  d_w  (filters, taps * C8)    = d_y transposed times patches of x
//
// A tap is one (r, s) of the filter. Channels (and filters, where they are summed) of each tap are
// padded to a multiple of eight in the products' positions, C8, so that eight of them never
// straddle two taps; the padding reads as zero.
#pragma once
#include "kernels/conv/conv2d.h"
#include "kernels/gemm/epilogue.cuh"

namespace saturate::kernels::conv {

struct Shape {
  int batch, height, width, channels, filters, taps, filter_width;
  int rows, cols;  // of y
  int stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int c8, f8;  // channels and filters rounded up to a multiple of eight
};

inline Shape shape_of(const Conv2dArgs& x) {
  const auto i = [](int64_t v) { return static_cast<int>(v); };
  return {i(x.batch),
          i(x.height),
          i(x.width),
          i(x.channels),
          i(x.filters),
          i(x.filter_height * x.filter_width),
          i(x.filter_width),
          i(x.output_height()),
          i(x.output_width()),
          i(x.vertical.stride),
          i(x.horizontal.stride),
          i(x.vertical.padding),
          i(x.horizontal.padding),
          i(x.vertical.dilation),
          i(x.horizontal.dilation),
          i((x.channels + 7) / 8 * 8),
          i((x.filters + 7) / 8 * 8)};
}

// Row: a pixel of y. Column: tap * C8 + channel of x.
template <class T>
struct InputPatches {
  const T* x;
  Shape s;
  __device__ __forceinline__ const T* chunk(int row, int col, int& valid) const {
    const int tap = col / s.c8, c = col - tap * s.c8;
    const int b = row / (s.rows * s.cols), inside = row - b * (s.rows * s.cols);
    const int p = inside / s.cols, q = inside - p * s.cols;
    const int r = tap / s.filter_width;
    const int h = p * s.stride_h - s.pad_h + r * s.dilation_h;
    const int v = q * s.stride_w - s.pad_w + (tap - r * s.filter_width) * s.dilation_w;
    const bool there =
        b < s.batch && tap < s.taps && h >= 0 && h < s.height && v >= 0 && v < s.width;
    valid = there ? max(0, min(8, s.channels - c)) : 0;
    if (valid == 0) return x;
    return x + ((static_cast<int64_t>(b) * s.height + h) * s.width + v) * s.channels + c;
  }
};

// Row: a pixel of x. Column: tap * F8 + filter.
template <class T>
struct OutputPatches {
  const T* d_y;
  Shape s;
  __device__ __forceinline__ const T* chunk(int row, int col, int& valid) const {
    const int tap = col / s.f8, f = col - tap * s.f8;
    const int b = row / (s.height * s.width), inside = row - b * (s.height * s.width);
    const int h = inside / s.width, v = inside - h * s.width;
    const int r = tap / s.filter_width;
    const int down = h + s.pad_h - r * s.dilation_h;
    const int across = v + s.pad_w - (tap - r * s.filter_width) * s.dilation_w;
    const int p = down / s.stride_h, q = across / s.stride_w;
    const bool there = b < s.batch && tap < s.taps && down >= 0 && across >= 0 &&
                       p * s.stride_h == down && q * s.stride_w == across && p < s.rows &&
                       q < s.cols;
    valid = there ? max(0, min(8, s.filters - f)) : 0;
    if (valid == 0) return d_y;
    return d_y + ((static_cast<int64_t>(b) * s.rows + p) * s.cols + q) * s.filters + f;
  }
};

// Row: a filter. Column: tap * C8 + channel.
template <class T>
struct WeightByFilter {
  const T* w;
  Shape s;
  __device__ __forceinline__ const T* chunk(int row, int col, int& valid) const {
    const int tap = col / s.c8, c = col - tap * s.c8;
    valid = row < s.filters && tap < s.taps ? max(0, min(8, s.channels - c)) : 0;
    if (valid == 0) return w;
    return w + (static_cast<int64_t>(row) * s.taps + tap) * s.channels + c;
  }
};

// Row: tap * F8 + filter. Column: channel.
template <class T>
struct WeightByTap {
  const T* w;
  Shape s;
  __device__ __forceinline__ const T* chunk(int row, int col, int& valid) const {
    const int tap = row / s.f8, f = row - tap * s.f8;
    valid = tap < s.taps && f < s.filters ? max(0, min(8, s.channels - col)) : 0;
    if (valid == 0) return w;
    return w + (static_cast<int64_t>(f) * s.taps + tap) * s.channels + col;
  }
};

// Row: a pixel of y. Column: filter.
template <class T>
struct OutputGradient {
  const T* d_y;
  Shape s;
  __device__ __forceinline__ const T* chunk(int row, int col, int& valid) const {
    valid = row < s.batch * s.rows * s.cols ? max(0, min(8, s.filters - col)) : 0;
    return valid == 0 ? d_y : d_y + static_cast<int64_t>(row) * s.filters + col;
  }
};

// Where the sums of eight columns go: a dense matrix of T...
template <class T>
struct DenseOut {
  EpilogueRow row;
  int rows;
  __device__ __forceinline__ void operator()(int, int r, int col, float (&v)[8]) const {
    float none[8] = {};
    if (r < rows && col < row.n) row.apply<T, false>(r, col, v, none);
  }
};
// ... or one split's share of the weight gradient: partial (splits, filters, taps * C8).
struct PartialOut {
  float* partial;
  int rows, cols;  // cols is a multiple of 8
  __device__ __forceinline__ void operator()(int split, int r, int col, float (&v)[8]) const {
    if (r < rows && col < cols)
      store(partial + (static_cast<int64_t>(split) * rows + r) * cols + col, v);
  }
};

}  // namespace saturate::kernels::conv
