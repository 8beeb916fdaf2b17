// SPDX-License-Identifier: Apache-2.0
// What vector_math.h has, in vectors of sixteen floats and with the same bits. In an unnamed namespace: each
// file that includes this, *_avx512.cpp, is compiled for a processor of its own.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace saturate::kernels {
namespace {

constexpr int64_t kLanes512 = 16;

// Eight lanes each of two sums, then both halves of the same: as lane_sum() adds them.
__m256 halves(__m512 v) {
  return _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
}

// e^x as vector_exp() of vector_math.h computes it, with the same bits.
__m512 exp512(__m512 x) {
  const __m512 least = _mm512_set1_ps(-87.3f), most = _mm512_set1_ps(88.7f),
               round = _mm512_set1_ps(12582912.0f);
  const __mmask16 none = _mm512_cmp_ps_mask(x, least, _CMP_LT_OQ);
  const __m512 low = _mm512_mask_mov_ps(x, none, least);
  const __m512 c = _mm512_mask_mov_ps(low, _mm512_cmp_ps_mask(low, most, _CMP_GT_OQ), most);
  const __m512 shifted = _mm512_fmadd_ps(c, _mm512_set1_ps(1.44269504f), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  const __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(2.12194440e-4f),
                                   _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), c));
  __m512 p = _mm512_set1_ps(1.383678987622261e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.374856784939766e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.166822880506516e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666419804096222e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.9999991059303284e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  const __m512i power =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(_knot_mask16(none), p, _mm512_castsi512_ps(power));
}

// Sixteen lanes, by halves.
float sum_of(__m512 v) {
  const __m256 a = halves(v);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

}  // namespace
}  // namespace saturate::kernels
