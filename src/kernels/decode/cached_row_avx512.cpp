// SPDX-License-Identifier: Apache-2.0
// Chosen at run time by cached_attention_cpu.cpp. Only what is in this file may be called here: a function of
// a header could replace the one that other processors run.
#if defined(__x86_64__)
#include "kernels/decode/cached_row.h"
#include "kernels/host/vector_math512.h"

namespace saturate::kernels {
namespace {

constexpr int64_t W = kLanes512;
constexpr __mmask16 kLow = 0xff;

__m256 pairs(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
}

// The lanes of four vectors: pairs meet, then fours, then halves.
__m128 sums_of(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256d first = _mm256_castps_pd(pairs(a, b)), second = _mm256_castps_pd(pairs(c, d));
  const __m256 sum = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(first, second)),
                                   _mm256_castpd_ps(_mm256_unpackhi_pd(first, second)));
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

__m512 part(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }

}  // namespace

void cached_scores_avx512(const CachedRow<float>& r) {
  const int64_t whole = r.head_size / W * W;
  const bool half = r.head_size % W != 0;
  for (int64_t i = 0; i < r.fours; ++i) {
    const float* const* const keys = r.keys + i * kCachedKeys;
    for (int64_t h = 0; h < r.heads; ++h) {
      const float* const q = r.q + h * r.head_size;
      const int64_t column = h / r.group * r.head_size;
      const float *const k0 = keys[0] + column, *const k1 = keys[1] + column,
                         *const k2 = keys[2] + column, *const k3 = keys[3] + column;
      __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
      for (int64_t c = 0; c < whole; c += W) {
        const __m512 x = _mm512_loadu_ps(q + c);
        s0 = _mm512_fmadd_ps(x, _mm512_loadu_ps(k0 + c), s0);
        s1 = _mm512_fmadd_ps(x, _mm512_loadu_ps(k1 + c), s1);
        s2 = _mm512_fmadd_ps(x, _mm512_loadu_ps(k2 + c), s2);
        s3 = _mm512_fmadd_ps(x, _mm512_loadu_ps(k3 + c), s3);
      }
      if (half) {
        const int64_t c = whole;
        const __m512 x = part(q + c, kLow);
        s0 = _mm512_mask3_fmadd_ps(x, part(k0 + c, kLow), s0, kLow);
        s1 = _mm512_mask3_fmadd_ps(x, part(k1 + c, kLow), s1, kLow);
        s2 = _mm512_mask3_fmadd_ps(x, part(k2 + c, kLow), s2, kLow);
        s3 = _mm512_mask3_fmadd_ps(x, part(k3 + c, kLow), s3, kLow);
      }
      const __m128 total = sums_of(halves(s0), halves(s1), halves(s2), halves(s3));
      _mm_storeu_ps(r.weights + h * r.stride + i * kCachedKeys,
                    _mm_mul_ps(_mm_set1_ps(r.scale), total));
    }
  }
}

void cached_values_avx512(const CachedRow<float>& r) {
  for (int64_t i = 0; i < r.fours; ++i) {
    const float* const* const keys = r.keys + i * kCachedKeys;
    for (int64_t h = 0; h < r.heads; ++h) {
      float* const o = r.o + h * r.head_size;
      const float* const p = r.weights + h * r.stride + i * kCachedKeys;
      const int64_t column = r.values + h / r.group * r.head_size;
      const float *const v0 = keys[0] + column, *const v1 = keys[1] + column,
                         *const v2 = keys[2] + column, *const v3 = keys[3] + column;
      const __m512 p0 = _mm512_set1_ps(p[0]), p1 = _mm512_set1_ps(p[1]), p2 = _mm512_set1_ps(p[2]),
                   p3 = _mm512_set1_ps(p[3]);
      const int64_t whole = r.head_size / W * W;
      for (int64_t c = 0; c < whole; c += W) {
        __m512 sum = _mm512_loadu_ps(o + c);
        sum = _mm512_fmadd_ps(p0, _mm512_loadu_ps(v0 + c), sum);
        sum = _mm512_fmadd_ps(p1, _mm512_loadu_ps(v1 + c), sum);
        sum = _mm512_fmadd_ps(p2, _mm512_loadu_ps(v2 + c), sum);
        sum = _mm512_fmadd_ps(p3, _mm512_loadu_ps(v3 + c), sum);
        _mm512_storeu_ps(o + c, sum);
      }
      if (r.head_size % W != 0) {
        const int64_t c = whole;
        __m512 sum = part(o + c, kLow);
        sum = _mm512_fmadd_ps(p0, part(v0 + c, kLow), sum);
        sum = _mm512_fmadd_ps(p1, part(v1 + c, kLow), sum);
        sum = _mm512_fmadd_ps(p2, part(v2 + c, kLow), sum);
        sum = _mm512_fmadd_ps(p3, part(v3 + c, kLow), sum);
        _mm512_mask_storeu_ps(o + c, kLow, sum);
      }
    }
  }
}

void cached_softmax_avx512(const CachedRow<float>& r) {
  const __m512 none = _mm512_set1_ps(-__builtin_inff());
  for (int64_t h = 0; h < r.heads; ++h) {
    float* const p = r.weights + h * r.stride;
    const auto seen = [&](int64_t j) {
      const int64_t left = r.count - j;
      return static_cast<__mmask16>(left < W ? (1u << left) - 1 : 0xffffu);
    };
    __m512 tops = none;
    for (int64_t j = 0; j < r.stride; j += W)
      tops = _mm512_mask_max_ps(tops, seen(j), tops, _mm512_loadu_ps(p + j));
    const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(tops));
    __m512 sum = _mm512_setzero_ps();
    for (int64_t j = 0; j < r.stride; j += W) {
      const __m512 e = exp512(_mm512_sub_ps(_mm512_mask_loadu_ps(none, seen(j), p + j), top));
      _mm512_storeu_ps(p + j, e);
      sum = _mm512_add_ps(sum, e);
    }
    const __m512 inverse = _mm512_set1_ps(1.0f / sum_of(sum));
    for (int64_t j = 0; j < r.stride; j += W)
      _mm512_storeu_ps(p + j, _mm512_mul_ps(_mm512_loadu_ps(p + j), inverse));
  }
}

}  // namespace saturate::kernels
#endif
