// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>

#include <algorithm>
#include <limits>

#include "kernels/gemm/matmul_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr CBLAS_TRANSPOSE blas(Transpose t) {
  return t == Transpose::yes ? CblasTrans : CblasNoTrans;
}

void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k, float alpha,
          const float* a, blasint lda, const float* b, blasint ldb, float beta, float* d,
          blasint ldd) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, d, ldd);
}
void gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, blasint m, blasint n, blasint k, float alpha,
          const double* a, blasint lda, const double* b, blasint ldb, float beta, double* d,
          blasint ldd) {
  cblas_dgemm(CblasRowMajor, ta, tb, m, n, k, static_cast<double>(alpha), a, lda, b, ldb,
              static_cast<double>(beta), d, ldd);
}

struct Range {
  int64_t begin, end;
  blasint size() const { return static_cast<blasint>(end - begin); }
};

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
  gemm(blas(x.ta), blas(x.tb), rows.size(), cols.size(), static_cast<blasint>(x.k), x.alpha, a,
       static_cast<blasint>(x.lda), b, static_cast<blasint>(x.ldb), static_cast<float>(beta),
       d + rows.begin * x.ldd + cols.begin, static_cast<blasint>(x.ldd));
}

template <class T>
void run(const MatmulArgs& x) {
  // The larger side is cut into panels whose width depends on the shape alone, so that the result
  // does not depend on the number of threads. 64 is a multiple of OpenBLAS's register tiles; 16
  // Mflop keeps the cost of packing the shared operand again under a few per cent.
  const bool by_rows = x.m >= x.n;
  const int64_t longer = by_rows ? x.m : x.n;
  const double flops_per_line = 2.0 * static_cast<double>(by_rows ? x.n : x.m) *
                                static_cast<double>(std::max<int64_t>(x.k, 1));
  const int64_t width =
      std::clamp<int64_t>(static_cast<int64_t>(16e6 / flops_per_line) / 64 * 64, 64, 1024);
  const int64_t panels = (longer + width - 1) / width;
  parallel_for(panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      const Range part{p * width, std::min(longer, (p + 1) * width)};
      by_rows ? block<T>(x, part, {0, x.n}) : block<T>(x, {0, x.m}, part);
    }
  });
}

}  // namespace

Fit matmul_blas_cpu_fits(const Context&, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 && x.ab_type != DType::f64) {
    return {"the CPU multiplies f32 and f64 only"};
  }
  const int64_t largest = std::max({x.m, x.n, x.k, x.lda, x.ldb, x.ldd});
  if (largest > std::numeric_limits<blasint>::max()) {
    return {"a size exceeds the integer type of BLAS"};
  }
  return {};
}

void matmul_blas_cpu(const Context&, const MatmulArgs& args) {
  // Threads are ours (parallel_for); a second pool inside BLAS would fight it for the cores.
  static const bool once = (openblas_set_num_threads(1), true);
  static_cast<void>(once);
  args.ab_type == DType::f64 ? run<double>(args) : run<float>(args);
}

}  // namespace saturate::kernels
