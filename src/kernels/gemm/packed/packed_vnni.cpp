// SPDX-License-Identifier: Apache-2.0
// Products of packed int8 weights with AVX-512 VNNI. Compiled for such processors: see packed_block.h.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

// x is unsigned, 128 more than its value: 128 times the column's sum is taken off at the end.
struct Vnni {
  using Acc = __m512i;
  using Float = __m512;
  using Element = __m512i;
  using Weights = __m512i;
  static constexpr int kWidth = 16, kVectors = 1, kRows = 6;
  static constexpr int64_t kElementBytes = 4;
  template <int R>
  static constexpr int panels() {
    return R <= 3 ? 8 : 4;
  }
  static Acc zero() { return _mm512_setzero_si512(); }
  static Element broadcast(const char* p) {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
  }
  static Weights load(const char* p, int) { return _mm512_load_si512(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    // Of the intrinsic GCC 12 copies the sum to another register and back, and has none left.
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
  static Float load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static Float biased(const Block& b, int64_t row, int64_t column, int, const Acc* sums,
                      Float bias) {
    const __m512i exact = _mm512_sub_epi32(sums[0], _mm512_loadu_si512(b.column_offset + column));
    const __m512 scale =
        _mm512_mul_ps(_mm512_set1_ps(b.row_scale[row]), _mm512_loadu_ps(b.column_scale + column));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, bias);
  }
  static Float relu(Float v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
};

}  // namespace

void s8_avx512_vnni(const Block& b) { multiply<Vnni>(b); }

}  // namespace saturate::kernels::packed
#endif  // x86-64
