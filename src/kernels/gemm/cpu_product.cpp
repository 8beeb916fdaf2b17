// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/cpu_product.h"

#include <algorithm>

#include "kernels/activation/activation_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels::cpu_product {
namespace {

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

}  // namespace

void share(const MatmulArgs& x, const std::function<void(Range, Range)>& block) {
  const Grid grid = grid_for(x);
  parallel_for(grid.rows * grid.cols, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b)
      block(part(x.m, b / grid.cols, grid.rows), part(x.n, b % grid.cols, grid.cols));
  });
}

Fit epilogue_fits(const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.slopes || e.bits) return {"the CPU keeps what an activation is given, not its slopes"};
  if (e.column_sum != nullptr) return {"the CPU sums no columns beside a product"};
  if (e.kind == EpilogueKind::gated || e.kind == EpilogueKind::gated_derivative)
    return {"the CPU has no gated epilogue"};
  if (!e.is_plain() &&
      (x.beta != 0.0f || x.batch != 1 || x.ldd != x.n || (e.aux != nullptr && e.ld_aux != x.n)))
    return {"the CPU's epilogues take one dense product without C"};
  return {};
}

void with_epilogue(const Context& ctx, const MatmulArgs& x,
                   const std::function<void(const MatmulArgs&)>& product) {
  const Epilogue& e = x.epilogue;
  ActivationArgs f{.kind = e.activation, .rows = x.m, .cols = x.n, .dtype = x.d_type, .rng = {}};
  f.rng.columns = x.n;
  MatmulArgs to = x;
  to.epilogue = {};
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

}  // namespace saturate::kernels::cpu_product
