// SPDX-License-Identifier: Apache-2.0
// Products of packed f32 weights with AVX-512. Compiled for such processors: see packed_block.h.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

struct Avx512 {
  using Acc = __m512;
  using Float = __m512;
  using Element = __m512;
  using Weights = __m512;
  static constexpr int kWidth = 16, kVectors = 1, kRows = 6;
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
  static Float load_floats(const float* p) { return _mm512_loadu_ps(p); }
  static Float biased(const Block&, int64_t, int64_t, int, const Acc* sums, Float bias) {
    return _mm512_add_ps(sums[0], bias);
  }
  static Float relu(Float v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }  // NaN stays
  static void store(float* p, Float v) { _mm512_storeu_ps(p, v); }
};

}  // namespace

void f32_avx512(const Block& b) { multiply<Avx512>(b); }

}  // namespace saturate::kernels::packed
#endif  // x86-64
