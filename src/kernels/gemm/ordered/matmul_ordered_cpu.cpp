// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/ordered/matmul_ordered_cpu.h"

#include <algorithm>
#include <cstring>

#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/cpu_product.h"
#include "runtime/memory.h"

// The vector arguments of inlined functions never cross an ABI border.
#pragma GCC diagnostic ignored "-Wpsabi"

namespace saturate::kernels {
namespace {

using cpu_product::Range;

// A tile of 6 rows by two vectors leaves registers for the line of B and one element of A of a step. A panel of B
// (16 KiB) stays in the first-level cache while a block of A passes, which stays in the second; all panels of a
// slice in the third.
constexpr int64_t kRows = 6, kSteps = kOrderedSteps, kLine = 64, kBlockRows = 144, kPanels = 64;
constexpr size_t kPanelBytes = static_cast<size_t>(kSteps * kLine);

// What one thread multiplies: d = alpha op(a) op(b), or that added to d.
template <class T>
struct Part {
  const T* a;
  const T* b;
  T* d;
  int64_t m, n, k, lda, ldb, ldd;
  bool ta, tb, add;
  T alpha;
};

template <class T>
class Multiply {
 public:
  // `room`: kScratchBytes, aligned to a line.
  Multiply(const Part<T>& part, char* room)
      : p_(part),
        panels_(reinterpret_cast<T*>(room)),
        rows_(panels_ + kPanels * kSteps * kColumns) {}
  // Rows lie a line more than their steps apart, or they would meet in few sets of the cache.
  static constexpr int64_t kStride = kSteps + kLine / static_cast<int64_t>(sizeof(T));
  static constexpr size_t kScratchBytes =
      kPanels * kPanelBytes + static_cast<size_t>(kBlockRows * kStride) * sizeof(T);

  void run() {
    for (int64_t j = 0; j < p_.n; j += kPanels * kColumns) {
      const int64_t columns = std::min(kPanels * kColumns, p_.n - j);
      for (int64_t s = 0; s < p_.k; s += kSteps) {
        const int64_t steps = std::min(kSteps, p_.k - s);
        pack_panels(j, columns, s, steps);
        for (int64_t i = 0; i < p_.m; i += kBlockRows)
          block(i, std::min(kBlockRows, p_.m - i), j, columns, s, steps);
      }
    }
  }

 private:
  static constexpr int64_t kLanes = 32 / static_cast<int64_t>(sizeof(T)), kColumns = 2 * kLanes;
  typedef T Vec __attribute__((vector_size(32)));
  static Vec load(const T* p) {
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
  }
  static void store(T* p, Vec v) { std::memcpy(p, &v, sizeof v); }
  T* panel(int64_t column) const { return panels_ + column * kSteps; }

  // Columns [j, j + columns) of op(B) as panels: of each step kColumns behind each other, zeros past the last.
  void pack_panels(int64_t j, int64_t columns, int64_t s, int64_t steps) const {
    // What is no whole panel, or of no whole vectors.
    const auto pack_rest = [&](int64_t c, int64_t from_step) {
      const int64_t count = std::min(kColumns, columns - c);
      const int64_t row = p_.tb ? 1 : p_.ldb, column = p_.tb ? p_.ldb : 1;
      const T* const from = p_.b + s * row + (j + c) * column;
      for (int64_t t = from_step; t < steps; ++t) {
        T* const to = panel(c) + t * kColumns;
        for (int64_t i = 0; i < count; ++i) to[i] = from[t * row + i * column];
        std::fill(to + count, to + kColumns, T{0});
      }
    };
    const int64_t whole = columns / kColumns * kColumns;
    if (p_.tb) {
      const int64_t vectors = steps / kLanes * kLanes;
      for (int64_t c = 0; c < whole; c += kLanes) {
        const T* const from = p_.b + (j + c) * p_.ldb + s;
        T* const to = panel(c / kColumns * kColumns) + c % kColumns;
        for (int64_t t = 0; t < vectors; t += kLanes)
          transpose(from + t, p_.ldb, to + t * kColumns);
      }
      for (int64_t c = 0; c < whole; c += kColumns) pack_rest(c, vectors);
    } else {
      constexpr int64_t kTogether = 4 * kColumns;  // lines of a row that are read at once
      for (int64_t first = 0; first < whole; first += kTogether) {
        const int64_t last = std::min(whole, first + kTogether);
        const T* from = p_.b + s * p_.ldb + j;
        for (int64_t t = 0; t < steps; ++t, from += p_.ldb) {
          for (int64_t c = first; c < last; c += kColumns) {
            T* const to = panel(c) + t * kColumns;
            const Vec one = load(from + c), two = load(from + c + kLanes);
            store(to, one), store(to + kLanes, two);
          }
        }
      }
    }
    if (whole < columns) pack_rest(whole, 0);
  }

  // kLanes rows of as many elements become its columns, kColumns apart.
  static void transpose(const T* from, int64_t ld, T* to) {
    Vec v[kLanes];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kLanes; ++i) v[i] = load(from + i * ld);
    if constexpr (kLanes == 8) {
      Vec x[8];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {  // pairs of rows
        x[2 * i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        x[2 * i + 1] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
      }
#pragma GCC unroll 2
      for (int i = 0; i < 8; i += 4) {  // fours
#pragma GCC unroll 2
        for (int h = 0; h < 2; ++h) {
          v[i + 2 * h] = __builtin_shufflevector(x[i + h], x[i + 2 + h], 0, 1, 8, 9, 4, 5, 12, 13);
          v[i + 2 * h + 1] =
              __builtin_shufflevector(x[i + h], x[i + 2 + h], 2, 3, 10, 11, 6, 7, 14, 15);
        }
      }
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {  // halves
        store(to + i * kColumns, __builtin_shufflevector(v[i], v[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
        store(to + (i + 4) * kColumns,
              __builtin_shufflevector(v[i], v[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
      }
    } else {
      const Vec x[4] = {__builtin_shufflevector(v[0], v[1], 0, 4, 2, 6),
                        __builtin_shufflevector(v[0], v[1], 1, 5, 3, 7),
                        __builtin_shufflevector(v[2], v[3], 0, 4, 2, 6),
                        __builtin_shufflevector(v[2], v[3], 1, 5, 3, 7)};
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        store(to + i * kColumns, __builtin_shufflevector(x[i], x[i + 2], 0, 1, 4, 5));
        store(to + (i + 2) * kColumns, __builtin_shufflevector(x[i], x[i + 2], 2, 3, 6, 7));
      }
    }
  }

  // Rows [i, i + rows) of op(A) in groups that differ by one row at most: one behind the other as they lie, or where A is
  // transposed of each step behind each other.
  void pack_rows(int64_t i, int64_t rows, int64_t groups, int64_t s, int64_t steps) const {
    if (!p_.ta) {
      for (int64_t r = 0; r < rows; ++r)
        copy(p_.a + (i + r) * p_.lda + s, steps, rows_ + r * kStride);
      return;
    }
    const T* from = p_.a + s * p_.lda + i;
    const bool whole = rows == groups * kRows && p_.alpha == T{1};
    for (int64_t t = 0; t < steps; ++t, from += p_.lda) {
      for (int64_t g = 0; g < groups; ++g) {
        T* const to = rows_ + (g * kSteps + t) * kRows;
        if (whole) {
          std::copy_n(from + g * kRows, kRows, to);
        } else {
          const int64_t first = rows * g / groups;
          copy(from + first, rows * (g + 1) / groups - first, to);
        }
      }
    }
  }

  // Times alpha, here and not in the sums: no compiler can join it with their addition in one tile alone.
  void copy(const T* from, int64_t count, T* to) const {
    if (p_.alpha == T{1}) {
      std::copy_n(from, count, to);
    } else {
      for (int64_t e = 0; e < count; ++e) to[e] = p_.alpha * from[e];
    }
  }

  // Rows [i, i + rows) of op(A) by all panels.
  void block(int64_t i, int64_t rows, int64_t j, int64_t columns, int64_t s, int64_t steps) const {
    const int64_t groups = (rows + kRows - 1) / kRows;
    pack_rows(i, rows, groups, s, steps);
    for (int64_t c = 0; c < columns; c += kColumns) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = rows * g / groups, count = rows * (g + 1) / groups - first;
        const Operands o{.x = rows_ + (p_.ta ? g * kSteps * kRows : first * kStride),
                         .w = panel(c),
                         .d = p_.d + (i + first) * p_.ldd + j + c,
                         .steps = steps,
                         .columns = std::min(kColumns, columns - c),
                         .add = p_.add || s > 0};
        p_.ta ? rows_at<true>(o, count) : rows_at<false>(o, count);
      }
    }
  }

  struct Operands {
    const T* x;
    const T* w;
    T* d;
    int64_t steps, columns;
    bool add;
  };

  template <bool kTogether>
  void rows_at(const Operands& o, int64_t rows) const {
    switch (rows) {
      case 1:
        return tile<1, kTogether>(o);
      case 2:
        return tile<2, kTogether>(o);
      case 3:
        return tile<3, kTogether>(o);
      case 4:
        return tile<4, kTogether>(o);
      case 5:
        return tile<5, kTogether>(o);
      default:
        return tile<6, kTogether>(o);
    }
  }

  // R rows by one panel. kTogether: the elements of a step are neighbours, else those of a row. Not inlined: the
  // loop needs all registers.
  template <int R, bool kTogether>
  __attribute__((noinline)) void tile(const Operands& o) const {
    Vec sums[R][2] = {};
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) __builtin_prefetch(o.d + r * p_.ldd, 1);
    const T* x = o.x;
    const T* const end = o.w + o.steps * kColumns;
#pragma GCC unroll 4
    for (const T* w = o.w; w != end; w += kColumns, x += kTogether ? kRows : 1) {
      const Vec first = load(w), second = load(w + kLanes);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const T element = x[kTogether ? r : r * kStride];
        sums[r][0] += element * first;
        sums[r][1] += element * second;
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) finish(o, o.d + r * p_.ldd, sums[r]);
  }

  // Part of a panel goes the way of a whole one, so that it is rounded alike.
  void finish(const Operands& o, T* d, const Vec (&sums)[2]) const {
    if (o.columns == kColumns) return put(o, d, sums);
    T whole[kColumns] = {};
    if (o.add) std::copy_n(d, o.columns, whole);
    put(o, whole, sums);
    std::copy_n(whole, o.columns, d);
  }
  void put(const Operands& o, T* d, const Vec (&sums)[2]) const {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      store(d + i * kLanes, o.add ? load(d + i * kLanes) + sums[i] : sums[i]);
    }
  }

  const Part<T>& p_;
  T* const panels_;
  T* const rows_;
};

// Of the calling thread; kept, since it is needed some hundred times a step.
char* scratch() {
  constexpr size_t kBytes =
      std::max(Multiply<float>::kScratchBytes, Multiply<double>::kScratchBytes);
  thread_local const Buffer room(Device{}, kBytes);
  return room.as<char>();
}

// The block of D in rows x cols, in the calling thread.
template <class T>
void block(const MatmulArgs& x, Range rows, Range cols) {
  const T* const c = static_cast<const T*>(x.c);
  const T* const bias = static_cast<const T*>(x.bias);
  T* const d = static_cast<T*>(x.d);
  const T beta = static_cast<T>(x.beta);
  const bool as_it_is = bias == nullptr && beta == T{1} && c == d;
  const bool starts = x.k == 0 || bias != nullptr || (beta != T{0} && !as_it_is);
  for (int64_t i = rows.begin; starts && i < rows.end; ++i) {
    for (int64_t j = cols.begin; j < cols.end; ++j) {
      const T start = bias != nullptr ? bias[j] : T{0};
      d[i * x.ldd + j] = beta == T{0} ? start : start + beta * c[i * x.ldc + j];
    }
  }
  if (x.k == 0 || rows.size() * cols.size() == 0) return;
  const bool ta = x.ta == Transpose::yes, tb = x.tb == Transpose::yes;
  const Part<T> part{.a = static_cast<const T*>(x.a) + rows.begin * (ta ? 1 : x.lda),
                     .b = static_cast<const T*>(x.b) + cols.begin * (tb ? x.ldb : 1),
                     .d = d + rows.begin * x.ldd + cols.begin,
                     .m = rows.size(),
                     .n = cols.size(),
                     .k = x.k,
                     .lda = x.lda,
                     .ldb = x.ldb,
                     .ldd = x.ldd,
                     .ta = ta,
                     .tb = tb,
                     .add = starts || as_it_is,
                     .alpha = static_cast<T>(x.alpha)};
  Multiply<T>(part, scratch()).run();
}

void product(const MatmulArgs& x) {
  cpu_product::share(x, [&](Range rows, Range cols) {
    x.ab_type == DType::f64 ? block<double>(x, rows, cols) : block<float>(x, rows, cols);
  });
}

}  // namespace

Fit matmul_ordered_cpu_fits(const Context&, const MatmulArgs& x) noexcept {
  return matmul_ordered_fits(x, blas_keeps_rows());
}

Fit matmul_ordered_fits(const MatmulArgs& x, bool blas_keeps_rows) noexcept {
  if (x.ab_type != DType::f32 && x.ab_type != DType::f64)
    return {"the CPU multiplies f32 and f64 only"};
  if (blas_keeps_rows) return {"OpenBLAS sums each row alike on this processor, and is faster"};
  return cpu_product::epilogue_fits(x);
}

void matmul_ordered_cpu(const Context& ctx, const MatmulArgs& args) {
  if (!args.epilogue.is_plain()) return cpu_product::with_epilogue(ctx, args, product);
  each_product(args, product);
}

}  // namespace saturate::kernels
