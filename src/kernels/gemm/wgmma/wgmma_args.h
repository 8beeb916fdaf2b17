// SPDX-License-Identifier: Apache-2.0
// From the arguments of a product to what the Hopper kernels get.
#pragma once
#include <algorithm>

#include "kernels/gemm/matmul.h"
#include "kernels/gemm/wgmma/wgmma_problem.h"
#include "kernels/hopper/tensor_map.h"

namespace saturate::kernels::wgmma {

// Not for both operands transposed.
inline Form form_of(const MatmulArgs& x) {
  if (x.ta == Transpose::yes) return Form::weight_gradient;
  return x.tb == Transpose::yes ? Form::forward : Form::input_gradient;
}

// Everything but the operands' maps, for tiles of (m, n) and blocks of k.
inline Problem problem_of(const MatmulArgs& x, int tile_m, int tile_n, int tile_k, int splits,
                          int band) {
  Problem p{};
  p.out = x.d;
  p.c = x.c;
  p.bias = x.bias;
  p.ldc = x.ldc;
  p.ldd = x.ldd;
  p.alpha = x.alpha;
  p.beta = x.beta;
  p.m = static_cast<int>(x.m);
  p.n = static_cast<int>(x.n);
  p.k_blocks = static_cast<int>(ceil_div(x.k, tile_k));
  p.split_blocks = static_cast<int>(ceil_div(p.k_blocks, splits));
  p.pairs_m = static_cast<int>(ceil_div(x.m, 2 * tile_m));
  p.tiles_n = static_cast<int>(ceil_div(x.n, tile_n));
  p.units = p.pairs_m * p.tiles_n * static_cast<int>(ceil_div(p.k_blocks, p.split_blocks));
  p.band = std::min(band, p.pairs_m);
  return p;
}

// Blocks to launch it on.
inline int blocks_for(const Context& ctx, const Problem& p) {
  return std::min(blocks_of(ctx), 2 * p.units);
}

}  // namespace saturate::kernels::wgmma
