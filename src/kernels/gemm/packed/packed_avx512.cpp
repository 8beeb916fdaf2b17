// SPDX-License-Identifier: Apache-2.0
// Products of packed f32 and bf16 weights with AVX-512. Compiled for such processors: see packed_block.h.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_sums.h"

namespace saturate::kernels::packed {
namespace {

struct Avx512 : SumsF32 {
  using Element = __m512;
  using Weights = __m512;
  static constexpr int kRows = 6;
  static constexpr int64_t kElementBytes = 4;
  // Of 32 registers the accumulators take 24 at most.
  template <int R>
  static constexpr int panels() {
    return R <= 3 ? 8 : 4;
  }
  static Acc zero() { return _mm512_setzero_ps(); }
  static Element broadcast(const char* p) {
    return _mm512_set1_ps(*reinterpret_cast<const float*>(p));
  }
  static Weights load(const char* p, int) { return _mm512_load_ps(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) { return _mm512_fmadd_ps(x, w, sum); }
};

struct Pair {
  __m512 first, second;
};

struct Avx512Bf16 : SumsF32 {
  using Element = Pair;
  using Weights = Pair;
  static constexpr int kRows = 4;
  static constexpr int64_t kElementBytes = 8;
  // Of 32 registers the accumulators take 16 at most, x 8 and weights 2.
  template <int R>
  static constexpr int panels() {
    return R <= 2 ? 8 : 4;
  }
  static Acc zero() { return _mm512_setzero_ps(); }
  static Element broadcast(const char* p) {
    const auto* const x = reinterpret_cast<const float*>(p);
    return {_mm512_set1_ps(x[0]), _mm512_set1_ps(x[1])};
  }
  static Weights load(const char* p, int) {
    const __m512i both = _mm512_load_si512(p), upper = _mm512_set1_epi32(-65536);
    return {_mm512_castsi512_ps(_mm512_and_si512(both, upper)),
            _mm512_castsi512_ps(_mm512_slli_epi32(both, 16))};
  }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    return _mm512_fmadd_ps(x.second, w.second, _mm512_fmadd_ps(x.first, w.first, sum));
  }
};

}  // namespace

void f32_avx512(const Block& b) { multiply<Avx512>(b); }
void bf16_avx512(const Block& b) {
  const NoDenormals zeros;
  multiply<Avx512Bf16>(b);
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
