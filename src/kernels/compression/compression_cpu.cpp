// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/compression/compression_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kGrainBlocks = 128;

// Of the largest absolute value of a block; 0: all of it waits.
float scale_of(float largest) {
  const uint32_t up = std::bit_cast<uint32_t>(largest / kLargestCode) + kScaleTail;
  const float scale = std::bit_cast<float>(up & ~kScaleTail);
  return scale < kSmallestScale ? 0 : scale;
}

template <class T>
void compress_block(const CompressArgs& a, int64_t block) {
  const int64_t first = block * kCodedElements;
  const int64_t n = std::clamp<int64_t>(a.count - first, 0, kCodedElements);
  const T* const x = static_cast<const T*>(a.x) + first;
  T* const residual = static_cast<T*>(a.residual) + first;
  T v[kCodedElements] = {};
  for (int64_t i = 0; i < n; ++i) v[i] = x[i] + residual[i];
  for (int64_t k = 0; k < a.input_count; ++k) {
    const CodedBlock& in = a.inputs[k * a.blocks + block];
    for (int64_t i = 0; i < n; ++i) v[i] += static_cast<T>(in.scale) * static_cast<T>(in.codes[i]);
  }
  T largest = 0, marks = 0;  // marks: NaN where one is not finite
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::abs(v[i]));
    marks += v[i] * 0;
  }
  CodedBlock& y = a.y[block];
  std::fill_n(y.codes, kCodedElements, int8_t{0});
  if (std::isnan(marks)) {
    y.scale = std::numeric_limits<float>::quiet_NaN();
    return;
  }
  y.scale = scale_of(static_cast<float>(largest));
  const T inverse = y.scale > 0 ? 1 / static_cast<T>(y.scale) : 0;
  for (int64_t i = 0; i < n; ++i) {
    const T code = std::nearbyint(v[i] * inverse);
    y.codes[i] = static_cast<int8_t>(code);
    residual[i] = v[i] - code * static_cast<T>(y.scale);
  }
}

template <class T>
void compress_of(const CompressArgs& a) {
  parallel_for(a.blocks, kGrainBlocks, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) compress_block<T>(a, b);
  });
}

template <class T>
void decompress_of(const DecompressArgs& a) {
  parallel_for(coded_blocks(a.count), kGrainBlocks, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kCodedElements, n = std::min(kCodedElements, a.count - first);
      T* const y = static_cast<T*>(a.y) + first;
      for (int64_t i = 0; i < n; ++i)
        y[i] = static_cast<T>(a.x[b].scale) * static_cast<T>(a.x[b].codes[i]);
    }
  });
}

}  // namespace

void compress_cpu(const Context&, const CompressArgs& a) {
  a.dtype == DType::f64 ? compress_of<double>(a) : compress_of<float>(a);
}

void decompress_cpu(const Context&, const DecompressArgs& a) {
  a.dtype == DType::f64 ? decompress_of<double>(a) : decompress_of<float>(a);
}

}  // namespace saturate::kernels
