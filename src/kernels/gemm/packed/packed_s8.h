// SPDX-License-Identifier: Apache-2.0
// The end of an int8 product with AVX-512, which VNNI and AMX share. In an unnamed namespace: each file
// that includes this is compiled for a processor of its own.
#pragma once
#include <immintrin.h>

#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

// x is unsigned, 128 more than its value: 128 times the column's sum is taken off at the end.
struct Sums8 {
  using Acc = __m512i;
  using Float = __m512;
  static constexpr int kWidth = 16, kVectors = 1;
  static Float load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static Float biased(const Block& b, int64_t row, int64_t column, int, const Acc* sums,
                      Float bias) {
    const __m512i exact = _mm512_sub_epi32(sums[0], _mm512_loadu_si512(b.column_offset + column));
    const __m512 scale =
        _mm512_mul_ps(_mm512_set1_ps(b.row_scale[row]), _mm512_loadu_ps(b.column_scale + column));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, bias);
  }
  static Float relu(Float v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }  // NaN stays
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
};

}  // namespace
}  // namespace saturate::kernels::packed
