// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/cpu_product.h"
#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels {
namespace {

using cpu_product::Range;

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
  blas_gemm({.ta = x.ta == Transpose::yes,
             .tb = x.tb == Transpose::yes,
             .m = static_cast<int>(rows.size()),
             .n = static_cast<int>(cols.size()),
             .k = static_cast<int>(x.k),
             .lda = static_cast<int>(x.lda),
             .ldb = static_cast<int>(x.ldb),
             .ldd = static_cast<int>(x.ldd)},
            static_cast<T>(x.alpha), a, b, beta, d + rows.begin * x.ldd + cols.begin);
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
