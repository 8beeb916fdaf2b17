// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include "kernels/decode/beam_row_wide.h"
#include "kernels/host/vector_math512.h"

namespace saturate::kernels {
namespace {

__mmask16 first_lanes(int64_t count) {
  return static_cast<__mmask16>(count < kLanes512 ? (1u << count) - 1 : 0xffffu);
}

}  // namespace

float largest_avx512(const float* z, int64_t n) {
  __m512 top = _mm512_set1_ps(-__builtin_inff());
  for (int64_t i = 0; i < n; i += kLanes512) {
    const __mmask16 there = first_lanes(n - i);
    // Where the first operand is no number the second stays.
    top = _mm512_mask_max_ps(top, there, _mm512_maskz_loadu_ps(there, z + i), top);
  }
  return _mm512_reduce_max_ps(top);
}

float exp_sum_avx512(const float* z, int64_t n, float top) {
  const __m512 tops = _mm512_set1_ps(top);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += kLanes512) {
    const __mmask16 there = first_lanes(n - i);
    const __m512 e = exp512(_mm512_sub_ps(_mm512_maskz_loadu_ps(there, z + i), tops));
    sum = _mm512_mask_add_ps(sum, there, sum, e);
  }
  return sum_of(sum);
}

}  // namespace saturate::kernels
#endif
