// SPDX-License-Identifier: Apache-2.0
// Products of packed int8 weights with AVX2, and the rounding of their other operand.
//
// vpmaddubsw multiplies 32 pairs of bytes, the first unsigned, and adds neighbours in 16 bits. With |x| <= 127
// as the first and w with x's sign as the second no sum of two leaves 16 bits, so all is exact. Where x is
// negative w's bits are turned over, which makes -w - 1 of it and leaves |x| to be added once for the whole
// row: vpxor takes any of four ports, vpsignb two that the products need.
#if defined(__x86_64__)
#include <cstring>

#include "kernels/gemm/packed/packed_floats256.h"

namespace saturate::kernels::packed {
namespace {

// Of 16 registers 12 are sums, one holds ones, and a row takes two, or one, and one for what is on its way; weights are
// read where they lie. As intrinsics GCC 12 makes all products of a step first, for which it keeps sums in memory.
struct Bytes : Floats256 {
  using Acc = __m256i;
  using Weights = const __m256i*;
  static constexpr bool kWeightsInMemory = true;
  static constexpr int kVectors = 2, kRows = 6;
  static constexpr int64_t kElementBytes = 8;
  template <int R>
  static constexpr int panels() {
    return R == 1 ? 4 : R <= 3 ? 2 : 1;
  }
  static Acc zero() { return _mm256_setzero_si256(); }
  static Weights load(const char* p, int v) { return reinterpret_cast<const __m256i*>(p) + v; }
  static __m256i four(const char* p) {
    int32_t bytes;
    std::memcpy(&bytes, p, sizeof(bytes));
    return _mm256_set1_epi32(bytes);
  }
  static __m256i ones() { return _mm256_set1_epi16(1); }
  static Float biased(const Block& b, int64_t row, int64_t column, int i, const Acc* sums,
                      Float bias) {
    const __m256i exact = _mm256_add_epi32(sums[i], _mm256_set1_epi32(b.row_offset[row]));
    const __m256 scale = _mm256_mul_ps(_mm256_set1_ps(b.row_scale[row]),
                                       _mm256_loadu_ps(b.column_scale + column + 8 * i));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), scale, bias);
  }
};

struct Signed : Bytes {
  struct Element {
    __m256i size, turned;
  };
  static Element broadcast(const char* p) { return {four(p), four(p + 4)}; }
  static Acc multiply_add(Acc sum, const Element& x, Weights w) {
    __m256i product;
    asm("vpxor %[w], %[turned], %[p]\n\tvpmaddubsw %[p], %[x], %[p]\n\t"
        "vpmaddwd %[ones], %[p], %[p]\n\tvpaddd %[p], %[sum], %[sum]"
        : [sum] "+x"(sum), [p] "=&x"(product)
        : [x] "x"(x.size), [turned] "x"(x.turned), [w] "m"(*w), [ones] "x"(ones()));
    return sum;
  }
};

// Of rows without a negative number, as ReLU leaves them.
struct Positive : Bytes {
  using Element = __m256i;
  static Element broadcast(const char* p) { return four(p); }
  static Acc multiply_add(Acc sum, Element x, Weights w) {
    __m256i product;
    asm("vpmaddubsw %[w], %[x], %[p]\n\tvpmaddwd %[ones], %[p], %[p]\n\t"
        "vpaddd %[p], %[sum], %[sum]"
        : [sum] "+x"(sum), [p] "=&x"(product)
        : [x] "x"(x), [w] "m"(*w), [ones] "x"(ones()));
    return sum;
  }
};

// As nearest() of packed_linear_cpu.cpp: one rounding of the product and the sum.
__m256i nearest(const float* x, __m256 factor) {
  const __m256 shift = _mm256_set1_ps(12582912.0f);
  const __m256 v = _mm256_fmadd_ps(_mm256_loadu_ps(x), factor, shift);
  return _mm256_sub_epi32(_mm256_castps_si256(v), _mm256_castps_si256(shift));
}

// 32 numbers as 8 times |q| of four and, of the same four, whether they are negative; adds to `below` what
// |q| of those that are comes to.
void round_32(const float* x, __m256 factor, char* to, __m256i* below) {
  // packs: fours of the four vectors, halves apart
  const __m256i a = _mm256_packs_epi32(nearest(x, factor), nearest(x + 8, factor));
  const __m256i b = _mm256_packs_epi32(nearest(x + 16, factor), nearest(x + 24, factor));
  const __m256i q = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b),
                                                _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  const __m256i size = _mm256_abs_epi8(q), turned = _mm256_cmpgt_epi8(_mm256_setzero_si256(), q);
  *below = _mm256_add_epi64(
      *below, _mm256_sad_epu8(_mm256_and_si256(size, turned), _mm256_setzero_si256()));
  const __m256i first = _mm256_unpacklo_epi32(size, turned);
  const __m256i second = _mm256_unpackhi_epi32(size, turned);
  auto* const out = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(out, _mm256_permute2x128_si256(first, second, 0x20));
  _mm256_storeu_si256(out + 1, _mm256_permute2x128_si256(first, second, 0x31));
}

}  // namespace

void s8_avx2(const Block& b) { multiply<Signed>(b); }
void s8_avx2_positive(const Block& b) { multiply<Positive>(b); }

int32_t round_row_signs(const float* x, int64_t count, float factor, char* to) {
  const __m256 by = _mm256_set1_ps(factor);
  __m256i below = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 32 <= count; i += 32) round_32(x + i, by, to + 2 * i, &below);
  if (i < count) {
    float rest[32] = {};
    std::memcpy(rest, x + i, static_cast<size_t>(count - i) * sizeof(float));
    round_32(rest, by, to + 2 * i, &below);
  }
  int64_t parts[4];
  std::memcpy(parts, &below, sizeof(parts));
  return static_cast<int32_t>(parts[0] + parts[1] + parts[2] + parts[3]);
}

}  // namespace saturate::kernels::packed
#endif  // x86-64
