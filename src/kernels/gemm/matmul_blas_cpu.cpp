// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/cpu_product.h"
#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels {
namespace {

using cpu_product::Range;

// A row's sums must have one order, whatever other rows there are, which OpenBLAS's small products do not
// keep to on some processors. So matrices op(B) of few elements are multiplied here, term after term, also
// where many rows make the product large, ...
constexpr int64_t kFewTerms = 2048;

template <class T>
void in_order(const BlasShape& s, T alpha, const T* a, const T* b, T beta, T* d) {
  T op_b[kFewTerms], sums[kFewTerms];
  for (int64_t p = 0; p < s.k; ++p)
    for (int64_t j = 0; j < s.n; ++j) op_b[p * s.n + j] = s.tb ? b[j * s.ldb + p] : b[p * s.ldb + j];
  for (int64_t i = 0; i < s.m; ++i) {
    std::fill_n(sums, s.n, T{0});
    for (int64_t p = 0; p < s.k; ++p) {
      const T one = s.ta ? a[p * s.lda + i] : a[i * s.lda + p];
      for (int64_t j = 0; j < s.n; ++j) sums[j] += one * op_b[p * s.n + j];
    }
    T* const to = d + i * s.ldd;
    for (int64_t j = 0; j < s.n; ++j) to[j] = alpha * sums[j] + (beta == T{0} ? T{0} : beta * to[j]);
  }
}

// ... and others with rows of zeros below op(A), as many as make it a large product: a row's sums then have one
// order, whatever other rows there are.
template <class T>
void among_zeros(BlasShape s, T alpha, const T* a, const T* b, T beta, T* d) {
  const int64_t rows = blas_small_product() / (int64_t{s.n} * s.k) + 1;
  thread_local std::vector<T> all_a, all_d;
  all_a.assign(static_cast<size_t>(rows * s.k), T{0});
  all_d.assign(static_cast<size_t>(rows * s.n), T{0});
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t p = 0; p < s.k; ++p)
      all_a[static_cast<size_t>(i * s.k + p)] = s.ta ? a[p * s.lda + i] : a[i * s.lda + p];
    std::copy_n(d + i * s.ldd, beta == T{0} ? 0 : s.n, &all_d[static_cast<size_t>(i * s.n)]);
  }
  const int64_t own = s.m, ldd = s.ldd;
  s.ta = false, s.m = static_cast<int>(rows), s.lda = s.k, s.ldd = s.n;
  blas_gemm(s, alpha, all_a.data(), b, beta, all_d.data());
  for (int64_t i = 0; i < own; ++i)
    std::copy_n(&all_d[static_cast<size_t>(i * s.n)], s.n, d + i * ldd);
}

// The block of D in rows x cols, in the calling thread.
template <class T>
void block(const MatmulArgs& x, Range rows, Range cols) {
  const T* c = static_cast<const T*>(x.c);
  const T* bias = static_cast<const T*>(x.bias);
  T* d = static_cast<T*>(x.d);
  T beta = static_cast<T>(x.beta);
  if (bias != nullptr || c != d || x.k == 0) {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        const T start = bias != nullptr ? bias[j] : T{0};
        d[i * x.ldd + j] = beta == T{0} ? start : start + beta * c[i * x.ldc + j];
      }
    }
    if (x.k == 0) return;
    beta = T{1};
  }
  const T* a = static_cast<const T*>(x.a) + rows.begin * (x.ta == Transpose::yes ? 1 : x.lda);
  const T* b = static_cast<const T*>(x.b) + cols.begin * (x.tb == Transpose::yes ? x.ldb : 1);
  const BlasShape shape{.ta = x.ta == Transpose::yes,
                        .tb = x.tb == Transpose::yes,
                        .m = static_cast<int>(rows.size()),
                        .n = static_cast<int>(cols.size()),
                        .k = static_cast<int>(x.k),
                        .lda = static_cast<int>(x.lda),
                        .ldb = static_cast<int>(x.ldb),
                        .ldd = static_cast<int>(x.ldd)};
  T* const to = d + rows.begin * x.ldd + cols.begin;
  if (rows.size() * cols.size() == 0) return;
  const int64_t small = blas_small_product();
  if (small > 0 && x.n * x.k <= kFewTerms) {
    in_order(shape, static_cast<T>(x.alpha), a, b, beta, to);
  } else if (small == 0 || rows.size() * cols.size() * x.k > small) {
    blas_gemm(shape, static_cast<T>(x.alpha), a, b, beta, to);
  } else {
    among_zeros(shape, static_cast<T>(x.alpha), a, b, beta, to);
  }
}

// The grid depends on the number of threads, the result does not: OpenBLAS sums every element over
// k in an order of its own that depends on k alone, once a block is above its limit for small
// products (checked by matmul_test.cpp).
template <class T>
void run(const MatmulArgs& x) {
  cpu_product::share(x, [&](Range rows, Range cols) { block<T>(x, rows, cols); });
}

}  // namespace

Fit matmul_blas_cpu_fits(const Context&, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 && x.ab_type != DType::f64) {
    return {"the CPU multiplies f32 and f64 only"};
  }
  if (const Fit fit = cpu_product::epilogue_fits(x); !fit) return fit;
  const int64_t largest = std::max({x.m, x.n, x.k, x.lda, x.ldb, x.ldd});
  if (largest > std::numeric_limits<int>::max()) {
    return {"a size exceeds the integer type of BLAS"};
  }
  return {};
}

namespace {

void product(const MatmulArgs& x) { x.ab_type == DType::f64 ? run<double>(x) : run<float>(x); }

}  // namespace

void matmul_blas_cpu(const Context& ctx, const MatmulArgs& args) {
  prepare_blas();
  if (!args.epilogue.is_plain()) return cpu_product::with_epilogue(ctx, args, product);
  each_product(args, product);
}

}  // namespace saturate::kernels
