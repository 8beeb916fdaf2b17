// SPDX-License-Identifier: Apache-2.0
// Products of packed int8 weights with AVX-512 VNNI, and the rounding of their other operand. Compiled
// for such processors: see packed_block.h.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_sums.h"

namespace saturate::kernels::packed {
namespace {

struct Vnni : Sums8 {
  using Element = __m512i;
  using Weights = __m512i;
  static constexpr int kRows = 6;
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
};

__mmask16 first(int64_t count) {
  return static_cast<__mmask16>(count >= 16 ? 0xFFFF : (1u << count) - 1u);
}

}  // namespace

void s8_avx512_vnni(const Block& b) { multiply<Vnni>(b); }

int32_t largest_bits_avx512(const float* x, int64_t count) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i most = _mm512_setzero_si512();
  for (int64_t i = 0; i < count; i += 16) {
    const __m512i bits = _mm512_maskz_loadu_epi32(first(count - i), x + i);
    most = _mm512_max_epi32(most, _mm512_and_si512(bits, magnitude));
  }
  return _mm512_reduce_max_epi32(most);
}

void round_row_avx512(const float* x, int64_t count, float factor, int64_t stride, uint8_t* q) {
  // As nearest() of packed_linear_cpu.cpp: one rounding of the product and the sum.
  const __m512 shift = _mm512_set1_ps(12582912.0f), by = _mm512_set1_ps(factor);
  const __m512i zero = _mm512_sub_epi32(_mm512_set1_epi32(128), _mm512_castps_si512(shift));
  for (int64_t i = 0; i < stride; i += 16) {
    const __mmask16 there = i < count ? first(count - i) : static_cast<__mmask16>(0);
    const __m512 v = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(there, x + i), by, shift);
    const __m512i rounded = _mm512_add_epi32(_mm512_castps_si512(v), zero);
    _mm512_mask_cvtepi32_storeu_epi8(q + i, first(stride - i), rounded);
  }
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
