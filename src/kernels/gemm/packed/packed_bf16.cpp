// SPDX-License-Identifier: Apache-2.0
// Products of packed bf16 weights with AVX512-BF16, and the rounding of their other operand. Compiled
// for such processors: see packed_block.h.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_sums.h"

namespace saturate::kernels::packed {
namespace {

struct Dot : SumsF32 {
  using Element = __m512i;
  using Weights = __m512i;
  static constexpr int kRows = 6;
  static constexpr int64_t kElementBytes = 4;
  template <int R>
  static constexpr int panels() {
    return R <= 3 ? 8 : 4;
  }
  static Acc zero() { return _mm512_setzero_ps(); }
  static Element broadcast(const char* p) {
    return _mm512_set1_epi32(*reinterpret_cast<const int32_t*>(p));
  }
  static Weights load(const char* p, int) { return _mm512_load_si512(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    // As of vpdpbusd: the intrinsic makes GCC 12 copy the sum.
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w));
    return sum;
  }
};

// The floats of pairs, earlier in the lower half.
__m512 lower(__m512i pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
__m512 upper(__m512i pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}
__m512i nearest(__m512 low, __m512 high) {
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

}  // namespace

void split_row(const float* x, int64_t count, int64_t part, char* to) {
  for (int64_t i = 0; i < count; i += 32, to += kLine) {
    const auto there = [&](int64_t at) {
      const int64_t left = count - at;
      return static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1u);
    };
    __m512 low = _mm512_maskz_loadu_ps(there(i), x + i);
    __m512 high = _mm512_maskz_loadu_ps(there(i + 16), x + i + 16);
    for (int p = 0; p < 3; ++p) {
      const __m512i both = nearest(low, high);
      _mm512_storeu_si512(to + p * part, both);
      const auto floats = [&](__m256i words) { return lower(_mm512_cvtepu16_epi32(words)); };
      low = _mm512_sub_ps(low, floats(_mm512_castsi512_si256(both)));
      high = _mm512_sub_ps(high, floats(_mm512_extracti64x4_epi64(both, 1)));
    }
  }
}

void split_panel(const char* panel, int64_t count, int64_t part, char* to) {
  alignas(64) uint16_t order[32];  // a number of the first line, then that of the second below it
  for (uint16_t c = 0; c < 16; ++c) {
    order[2 * c] = c;
    order[2 * c + 1] = static_cast<uint16_t>(16 + c);
  }
  const __m512i by_pairs = _mm512_load_si512(order);
  for (int64_t s = 0; s < count; s += 2, panel += 2 * kLine, to += kLine) {
    __m512 first = _mm512_load_ps(panel);
    __m512 second = s + 1 < count ? _mm512_load_ps(panel + kLine) : _mm512_setzero_ps();
    for (int p = 0; p < 3; ++p) {
      const __m512i pairs = _mm512_permutexvar_epi16(by_pairs, nearest(first, second));
      _mm512_store_si512(to + p * part, pairs);
      first = _mm512_sub_ps(first, lower(pairs));
      second = _mm512_sub_ps(second, upper(pairs));
    }
  }
  const int64_t lines = (count + 1) / 2;
  for (int64_t s = lines; s % 16 != 0; ++s, to += kLine) {
    for (int p = 0; p < 3; ++p) _mm512_store_si512(to + p * part, _mm512_setzero_si512());
  }
}

void bf16_dot(const Block& b) {
  const NoDenormals zeros;
  multiply<Dot>(b);
}

void round_row_bf16(const float* x, int64_t count, int64_t stride, uint16_t* q) {
  for (int64_t i = 0; i < stride; i += 32) {
    const auto there = [&](int64_t at) {
      const int64_t left = count - at;
      return static_cast<__mmask16>(left >= 16 ? 0xFFFF : left <= 0 ? 0 : (1u << left) - 1u);
    };
    const __m512 low = _mm512_maskz_loadu_ps(there(i), x + i);
    const __m512 high = _mm512_maskz_loadu_ps(there(i + 16), x + i + 16);
    const auto pairs = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    _mm512_storeu_si512(q + i, _mm512_rol_epi32(pairs, 16));  // the earlier to the upper half
  }
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
