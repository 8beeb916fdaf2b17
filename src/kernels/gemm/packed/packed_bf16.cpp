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

}  // namespace

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
