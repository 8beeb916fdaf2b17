// SPDX-License-Identifier: Apache-2.0
// The end of a product with AVX-512, which VNNI, AVX512-BF16 and AMX share. In an unnamed namespace: each
// file that includes this is compiled for a processor of its own.
#pragma once
#include <immintrin.h>

#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

struct Floats512 {
  using Float = __m512;
  static constexpr int kWidth = 16, kVectors = 1;
  static Float load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static Float relu(Float v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }  // NaN stays
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
};

struct SumsF32 : Floats512 {
  using Acc = __m512;
  static Acc load_sums(const float* p) { return _mm512_load_ps(p); }
  static Float biased(const Block&, int64_t, int64_t, int, const Acc* sums, Float bias) {
    return _mm512_add_ps(sums[0], bias);
  }
};

// x is unsigned, 128 more than its value: 128 times the column's sum is taken off at the end.
struct Sums8 : Floats512 {
  using Acc = __m512i;
  static Acc load_sums(const int32_t* p) { return _mm512_load_si512(p); }
  static Float biased(const Block& b, int64_t row, int64_t column, int, const Acc* sums,
                      Float bias) {
    const __m512i exact = _mm512_sub_epi32(sums[0], _mm512_loadu_si512(b.column_offset + column));
    const __m512 scale =
        _mm512_mul_ps(_mm512_set1_ps(b.row_scale[row]), _mm512_loadu_ps(b.column_scale + column));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, bias);
  }
};

}  // namespace
}  // namespace saturate::kernels::packed
