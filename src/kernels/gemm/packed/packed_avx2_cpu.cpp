// SPDX-License-Identifier: Apache-2.0
// Products of packed weights with AVX2, the least that the CPU kernels are built for.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_floats256.h"

namespace saturate::kernels::packed {
namespace {

struct Avx2 : Floats256 {
  using Acc = __m256;
  using Element = __m256;
  using Weights = __m256;
  static constexpr int kVectors = 2, kRows = 6;
  static constexpr int64_t kElementBytes = 4;
  // Of 16 registers the accumulators take 12 at most.
  template <int R>
  static constexpr int panels() {
    return R == 1 ? 4 : R <= 3 ? 2 : 1;
  }
  static Acc zero() { return _mm256_setzero_ps(); }
  static Element broadcast(const char* p) {
    return _mm256_broadcast_ss(reinterpret_cast<const float*>(p));
  }
  static Weights load(const char* p, int v) {
    return _mm256_load_ps(reinterpret_cast<const float*>(p) + 8 * v);
  }
  static Acc multiply_add(Acc sum, Element x, Weights w) { return _mm256_fmadd_ps(x, w, sum); }
  static Float biased(const Block&, int64_t, int64_t, int i, const Acc* sums, Float bias) {
    return _mm256_add_ps(sums[i], bias);
  }
};

struct Pair {
  __m256 first, second;
};

struct Avx2Bf16 : Floats256 {
  using Acc = __m256;
  using Element = Pair;
  using Weights = Pair;
  static constexpr int kVectors = 2, kRows = 3;
  static constexpr int64_t kElementBytes = 8;
  template <int R>
  static constexpr int panels() {
    return R == 1 ? 4 : 1;
  }
  static Acc zero() { return _mm256_setzero_ps(); }
  static Element broadcast(const char* p) {
    const auto* const x = reinterpret_cast<const float*>(p);
    return {_mm256_broadcast_ss(x), _mm256_broadcast_ss(x + 1)};
  }
  static Weights load(const char* p, int v) {
    const __m256i both = _mm256_load_si256(reinterpret_cast<const __m256i*>(p) + v);
    return {_mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(-65536))),
            _mm256_castsi256_ps(_mm256_slli_epi32(both, 16))};
  }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    return _mm256_fmadd_ps(x.second, w.second, _mm256_fmadd_ps(x.first, w.first, sum));
  }
  static Float biased(const Block&, int64_t, int64_t, int i, const Acc* sums, Float bias) {
    return _mm256_add_ps(sums[i], bias);
  }
};

}  // namespace

void f32_avx2(const Block& b) { multiply<Avx2>(b); }
void bf16_avx2(const Block& b) {
  const NoDenormals zeros;
  multiply<Avx2Bf16>(b);
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
