// SPDX-License-Identifier: Apache-2.0
// Products of f32 operands that are rounded to bf16 as they are packed, with AVX-512. Compiled for such
// processors: see bf16_part.h. What is not in its contract is in an unnamed namespace.
//
// An element of d is one chain of additions over ascending k that starts from beta c + bias and passes
// through d between blocks of k; so neither blocks, nor tiles, nor how threads share d change a bit.
#if defined(__x86_64__)
#include <immintrin.h>

#include "kernels/gemm/bf16/bf16_part.h"

namespace saturate::kernels::bf16 {
namespace {

constexpr int kVector = 16, kVectors = static_cast<int>(kColumns) / kVector;

inline __mmask16 first_lanes(int64_t count) {
  return count >= kVector ? __mmask16{0xffff}
                          : static_cast<__mmask16>((1u << (count > 0 ? count : 0)) - 1u);
}
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

constexpr int64_t kDepth = 2;  // values of k in a unit

// The two instructions of AVX512-BF16 as assembly: their intrinsics need a compiler's flag that the
// other files for AVX-512 do not have. Both round to the nearest, ties to even; subnormals are 0.

inline __m512 multiply_add(__m512 sum, __m512 x, __m512 y) {
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
  return sum;
}

// bf16 of `low` in the lower 32 bytes, of `high` in the upper.
inline __m512i rounded(__m512 low, __m512 high) {
  __m512i both;
  asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
  return both;
}

// Units of 16 columns of one step from rows of k, of which the second may lack.
inline __m512i units(const float* x, int64_t ld, int64_t rows, __mmask16 lanes) {
  const __m512 even = _mm512_maskz_loadu_ps(lanes, x);
  const __m512 odd = rows > 1 ? _mm512_maskz_loadu_ps(lanes, x + ld) : _mm512_setzero_ps();
  const __m512i turn = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                        8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(turn, rounded(even, odd));
}

// Units of 16 steps of one row, of which `count` values are there.
inline __m512i along(const float* x, int64_t count) {
  const __m512 low = _mm512_maskz_loadu_ps(first_lanes(count), x);
  const __m512 high = count > kVector
                          ? _mm512_maskz_loadu_ps(first_lanes(count - kVector), x + kVector)
                          : _mm512_setzero_ps();
  return rounded(low, high);
}

// 16 rows of 16 units, written with rows and columns exchanged; rows lie out_bytes apart there.
inline void transpose(__m512i* r, char* out, int64_t out_bytes) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm512_store_si512(out + i * out_bytes, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    _mm512_store_si512(out + (i + 4) * out_bytes, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    _mm512_store_si512(out + (i + 8) * out_bytes, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    _mm512_store_si512(out + (i + 12) * out_bytes, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

// Columns [0, columns) of `values` rows of x (values, ld): `width` units a step, zeros past what is
// there.
void pack_across(const float* x, int64_t ld, int64_t values, int64_t columns, int64_t width,
                 char* out) {
  for (int64_t at = 0; at < values; at += kDepth, x += kDepth * ld) {
    for (int64_t c = 0; c < width; c += kVector, out += 64) {
      const __mmask16 lanes = first_lanes(columns - c);
      _mm512_store_si512(out, units(lanes == 0 ? x : x + c, ld, values - at, lanes));
    }
  }
}

// The same of x (columns, ld), which is turned: `values` of each row. `out` has room for whole 16 steps.
void pack_turned(const float* x, int64_t ld, int64_t values, int64_t columns, char* out) {
  constexpr int64_t kStep = kColumns * 4, kTaken = kVector * kDepth;
  for (int64_t at = 0; at < values; at += kTaken, out += kVector * kStep) {
    for (int64_t c = 0; c < kColumns; c += kVector) {
      __m512i r[kVector];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kVector; ++i)
        r[i] = c + i < columns ? along(x + (c + i) * ld + at, values - at) : _mm512_setzero_si512();
      transpose(r, out + c * 4, kStep);
    }
  }
}

// A block of A as tile() reads it: unit s of row r lies at data + r * row_bytes + s * step_bytes.
struct Rows {
  const char* data;
  int64_t row_bytes, step_bytes;
};

Rows pack_rows(const Part& p, int64_t row, int64_t rows, int64_t first, int64_t values) {
  if (p.ta) {
    pack_across(p.a + first * p.lda + row, p.lda, values, rows, kBlockRows, p.scratch);
    return {p.scratch, 4, kBlockRows * 4};
  }
  const float* const x = p.a + row * p.lda + first;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t at = 0; at < values; at += kVector * kDepth)
      _mm512_store_si512(p.scratch + r * kRowBytes + at * 4 / kDepth,
                         along(x + r * p.lda + at, values - at));
  }
  return {p.scratch, kRowBytes, 4};
}

// Which rows and columns of d a tile is, and whether k begins or ends with it.
struct Place {
  int64_t row, column, steps;
  bool first, last;
};

template <int R>
void store(const Part& p, const Place& at, const __m512 (&sums)[R][kVectors]) {
  const __m512 zero = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const int64_t column = at.column + v * kVector;
      const __mmask16 lanes = first_lanes(p.n - column);
      if (lanes == 0) break;
      __m512 sum = sums[r][v];
      if (at.last && p.finish != Finish::none) {
        float* const aux = p.aux == nullptr ? nullptr : p.aux + (at.row + r) * p.ld_aux + column;
        if (p.finish == Finish::slope) {
          const __m512 given = _mm512_maskz_loadu_ps(lanes, aux);
          sum = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(given, zero, _CMP_GT_OQ), sum);
        } else {
          if (aux != nullptr) _mm512_mask_storeu_ps(aux, lanes, sum);
          sum = _mm512_max_ps(zero, sum);  // the second where one is no number
        }
      }
      _mm512_mask_storeu_ps(p.d + (at.row + r) * p.ldd + column, lanes, sum);
    }
  }
}

template <int R>
void start(const Part& p, const Place& at, __m512 (&sums)[R][kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    const int64_t column = at.column + v * kVector;
    const __mmask16 lanes = first_lanes(p.n - column);
    const __m512 bias = p.bias == nullptr || lanes == 0
                            ? _mm512_setzero_ps()
                            : _mm512_maskz_loadu_ps(lanes, p.bias + column);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      sums[r][v] = bias;
      if (lanes == 0) continue;
      if (!at.first) {
        sums[r][v] = _mm512_maskz_loadu_ps(lanes, p.d + (at.row + r) * p.ldd + column);
      } else if (p.beta != 0) {
        const __m512 c = _mm512_maskz_loadu_ps(lanes, p.c + (at.row + r) * p.ldc + column);
        sums[r][v] = _mm512_fmadd_ps(_mm512_set1_ps(p.beta), c, bias);
      }
    }
  }
}

// R rows by 64 columns: 24 sums, four vectors of b and one unit of a in 32 registers.
template <int R>
void tile(const Part& p, const Place& at, const Rows& rows, const char* b) {
  __m512 sums[R][kVectors];
  start<R>(p, at, sums);
  const char* a = rows.data;
  const int64_t row_bytes = rows.row_bytes, step_bytes = rows.step_bytes;
  for (int64_t s = 0; s < at.steps; ++s, a += step_bytes, b += kColumns * 4) {
    __m512 column[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) column[v] = _mm512_load_ps(b + v * 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 x = _mm512_set1_ps(*reinterpret_cast<const float*>(a + r * row_bytes));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(sums[r][v], x, column[v]);
    }
  }
  store<R>(p, at, sums);
}

void some_rows(const Part& p, const Place& at, const Rows& rows, const char* b, int64_t count) {
  if (count >= 6) return tile<6>(p, at, rows, b);
  if (count == 5) return tile<5>(p, at, rows, b);
  if (count == 4) return tile<4>(p, at, rows, b);
  if (count == 3) return tile<3>(p, at, rows, b);
  if (count == 2) return tile<2>(p, at, rows, b);
  tile<1>(p, at, rows, b);
}

}  // namespace

void multiply_avx512(const Part& p) {
  constexpr int64_t kValues = kSteps * kDepth, kPanelBytes = kSteps * kColumns * 4;
  char* const slice = p.scratch + kBlockRows * kRowBytes;
  for (int64_t column = 0; column < p.n; column += kSliceColumns) {
    const int64_t columns = least(kSliceColumns, p.n - column);
    for (int64_t first = 0; first < p.k; first += kValues) {
      const int64_t values = least(kValues, p.k - first);
      for (int64_t c = 0; c < columns; c += kColumns) {
        char* const panel = slice + c / kColumns * kPanelBytes;
        const int64_t most = least(kColumns, columns - c);
        if (p.tb) {
          pack_turned(p.b + (column + c) * p.ldb + first, p.ldb, values, most, panel);
        } else {
          pack_across(p.b + first * p.ldb + column + c, p.ldb, values, most, kColumns, panel);
        }
      }
      for (int64_t row = 0; row < p.m; row += kBlockRows) {
        const int64_t most = least(kBlockRows, p.m - row);
        const Rows rows = pack_rows(p, row, most, first, values);
        Place at{.row = 0,
                 .column = 0,
                 .steps = (values + kDepth - 1) / kDepth,
                 .first = first == 0,
                 .last = first + values == p.k};
        for (int64_t c = 0; c < columns; c += kColumns) {
          at.column = column + c;
          for (int64_t r = 0; r < most; r += kRows) {
            at.row = row + r;
            const Rows here{rows.data + r * rows.row_bytes, rows.row_bytes, rows.step_bytes};
            some_rows(p, at, here, slice + c / kColumns * kPanelBytes, most - r);
          }
        }
      }
    }
  }
}

}  // namespace saturate::kernels::bf16
#endif  // x86-64
