// SPDX-License-Identifier: Apache-2.0
// Products of packed weights with AVX2, the least that the CPU kernels are built for.
#if defined(__x86_64__)
#include "kernels/gemm/packed/packed_bf16.h"
#include "kernels/gemm/packed/packed_tile.h"

namespace saturate::kernels::packed {
namespace {

struct Floats {
  using Float = __m256;
  static constexpr int kWidth = 8;
  static Float load_floats(const float* p) { return _mm256_loadu_ps(p); }
  static Float relu(Float v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }  // NaN stays
  static void store(float* p, Float v) { _mm256_storeu_ps(p, v); }
};

struct Avx2 : Floats {
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

struct Avx2Bf16 : Floats {
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

// Four columns by four of k in s16: vpmaddubsw would saturate, vpmaddwd does not, and its two sums a
// column meet at the end. One multiplication and one addition for 16 products, as many as f32 takes,
// of a quarter of the memory.
struct Words : Floats {
  using Acc = __m256i;
  using Weights = __m256i;
  static constexpr int kVectors = 4;
  static constexpr int64_t kElementBytes = 8;
  static Acc zero() { return _mm256_setzero_si256(); }
  static Weights load(const char* p, int v) {
    return _mm256_cvtepi8_epi16(_mm_load_si128(reinterpret_cast<const __m128i*>(p) + v));
  }
  static Float biased(const Block& b, int64_t row, int64_t column, int i, const Acc* sums,
                      Float bias) {
    // hadd: columns 0 1 4 5 | 2 3 6 7
    const __m256i exact =
        _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums[2 * i], sums[2 * i + 1]), 0xd8);
    const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(b.row_scale[row]),
                                       _mm256_loadu_ps(b.column_scale + column + 8 * i));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, bias);
  }
};

struct OneRow : Words {
  using Element = __m256i;
  static constexpr int kRows = 1;
  template <int R>
  static constexpr int panels() {
    return 2;
  }
  static Element broadcast(const char* p) {
    return _mm256_set1_epi64x(*reinterpret_cast<const long long*>(p));
  }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(x, w));
  }
};

// Of 16 registers 12 are sums, one is for weights and one for a product: the other two hold four of k of two
// rows, and the third row's are loaded at each use. As intrinsics GCC 12 makes all products of a step first,
// for which it keeps sums in memory.
struct Rows : Words {
  struct Element {
    __m256i value;
    const long long* at;
    bool held;
  };
  static constexpr int kRows = 3;
  template <int R>
  static constexpr int panels() {
    return 1;
  }
  static Element of_row(const char* p, int row) {
    const auto* const at = reinterpret_cast<const long long*>(p);
    const bool held = row < 2;
    return {held ? _mm256_set1_epi64x(*at) : zero(), at, held};
  }
  static Acc multiply_add(Acc sum, const Element& x, Weights w) {
    __m256i product;
    if (x.held) {
      asm("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"
          : "+x"(sum), "=&x"(product)
          : "x"(x.value), "x"(w));
    } else {
      asm("vpbroadcastq %2, %1\n\tvpmaddwd %3, %1, %1\n\tvpaddd %1, %0, %0"
          : "+x"(sum), "=&x"(product)
          : "m"(*x.at), "x"(w));
    }
    return sum;
  }
};

}  // namespace

void f32_avx2(const Block& b) { multiply<Avx2>(b); }
void s8_avx2(const Block& b) { b.rows == 1 ? multiply<OneRow>(b) : multiply<Rows>(b); }
void bf16_avx2(const Block& b) {
  const NoDenormals zeros;
  multiply<Avx2Bf16>(b);
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
