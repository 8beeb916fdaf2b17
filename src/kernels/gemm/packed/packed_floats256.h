// SPDX-License-Identifier: Apache-2.0
// What the products with AVX2 share. In an unnamed namespace: each file that includes this is compiled for a
// processor of its own.
#pragma once
#include <immintrin.h>

#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

struct Floats256 {
  using Float = __m256;
  static constexpr int kWidth = 8;
  // Bytes of a panel that are asked for ahead, of several rows: of one, four panels side by side are loads enough.
  static constexpr int64_t kAhead = 3072;
  static Float load_floats(const float* p) { return _mm256_loadu_ps(p); }
  static Float relu(Float v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }  // NaN stays
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
};

}  // namespace
}  // namespace saturate::kernels::packed
