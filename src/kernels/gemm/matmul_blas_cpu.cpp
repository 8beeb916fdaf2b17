// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "kernels/activation/activation_impl.h"
#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/matmul_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

struct Range {
  int64_t begin, end;
  int size() const { return static_cast<int>(end - begin); }
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
  blas_gemm({.ta = x.ta == Transpose::yes,
             .tb = x.tb == Transpose::yes,
             .m = rows.size(),
             .n = cols.size(),
             .k = static_cast<int>(x.k),
             .lda = static_cast<int>(x.lda),
             .ldb = static_cast<int>(x.ldb),
             .ldd = static_cast<int>(x.ldd)},
            static_cast<T>(x.alpha), a, b, beta, d + rows.begin * x.ldd + cols.begin);
}

// D is cut into a grid of blocks, one a thread: rows x cols of them.
struct Grid {
  int64_t rows, cols;
};

// As many blocks as threads while each has 16 Mflop and whole lines of 64 (a multiple of OpenBLAS's
// register tiles). Every block packs its own part of A and of B: A is packed once for each column
// of the grid and B once for each row, so the grid with the least of both is taken.
Grid grid_for(const MatmulArgs& x) {
  const double flops = 2.0 * static_cast<double>(x.m) * static_cast<double>(x.n) *
                       static_cast<double>(std::max<int64_t>(x.k, 1));
  const int64_t worth = std::max<int64_t>(1, static_cast<int64_t>(flops / 16e6));
  const int64_t lines_m = std::max<int64_t>(1, x.m / 64), lines_n = std::max<int64_t>(1, x.n / 64);
  for (int64_t blocks = std::min<int64_t>(threads_here(), worth); blocks > 1; --blocks) {
    Grid best{0, 0};
    for (int64_t rows = 1; rows <= blocks; ++rows) {
      const Grid g{rows, blocks / rows};
      if (blocks % rows != 0 || g.rows > lines_m || g.cols > lines_n) continue;
      if (best.rows == 0 || x.m * g.cols + x.n * g.rows < x.m * best.cols + x.n * best.rows)
        best = g;
    }
    if (best.rows != 0) return best;
  }
  return {1, 1};
}

// Part `i` of `parts` of [0, n), borders at multiples of 64.
Range part(int64_t n, int64_t i, int64_t parts) {
  const int64_t lines = (n + 63) / 64;
  return {lines * i / parts * 64, std::min(n, lines * (i + 1) / parts * 64)};
}

// The grid depends on the number of threads, the result does not: OpenBLAS sums every element over
// k in an order of its own that depends on k alone, once a block is above its limit for small
// products (checked by matmul_test.cpp).
template <class T>
void run(const MatmulArgs& x) {
  const Grid grid = grid_for(x);
  parallel_for(grid.rows * grid.cols, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      block<T>(x, part(x.m, b / grid.cols, grid.rows), part(x.n, b % grid.cols, grid.cols));
    }
  });
}

}  // namespace

Fit matmul_blas_cpu_fits(const Context&, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 && x.ab_type != DType::f64) {
    return {"the CPU multiplies f32 and f64 only"};
  }
  const Epilogue& e = x.epilogue;
  if (e.column_sum != nullptr) return {"the CPU sums no columns beside a product"};
  if (e.kind == EpilogueKind::gated || e.kind == EpilogueKind::gated_derivative)
    return {"the CPU has no gated epilogue"};
  if (!e.is_plain() &&
      (x.beta != 0.0f || x.batch != 1 || x.ldd != x.n || (e.aux != nullptr && e.ld_aux != x.n)))
    return {"the CPU's epilogues take one dense product without C"};
  const int64_t largest = std::max({x.m, x.n, x.k, x.lda, x.ldb, x.ldd});
  if (largest > std::numeric_limits<int>::max()) {
    return {"a size exceeds the integer type of BLAS"};
  }
  return {};
}

namespace {

void product(const MatmulArgs& x) { x.ab_type == DType::f64 ? run<double>(x) : run<float>(x); }

// The product, and behind it what the elementwise operations would do: bit for bit as they do it.
void product_with_epilogue(const Context& ctx, const MatmulArgs& x) {
  const Epilogue& e = x.epilogue;
  ActivationArgs f{.kind = e.activation, .rows = x.m, .cols = x.n, .dtype = x.d_type, .rng = {}};
  f.rng.columns = x.n;
  MatmulArgs to = x;
  if (e.kind == EpilogueKind::derivative) {
    product(to);
    f.x = e.aux;
    activation_backward_cpu(ctx, {.forward = f, .d_y = x.d, .d_x = x.d});
    return;
  }
  if (e.aux != nullptr) to.c = to.d = e.aux;
  product(to);
  f.x = to.d;
  f.y = x.d;
  activation_forward_cpu(ctx, f);
}

}  // namespace

void matmul_blas_cpu(const Context& ctx, const MatmulArgs& args) {
  prepare_blas();
  if (!args.epilogue.is_plain()) return product_with_epilogue(ctx, args);
  each_product(args, product);
}

}  // namespace saturate::kernels
