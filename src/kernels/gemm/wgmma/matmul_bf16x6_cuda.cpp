// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_bf16x6.h"

#include <algorithm>

#include "kernels/gemm/wgmma/wgmma_host.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using wgmma::ceil_div;

constexpr int kParts = 3, kTile = 128;

// The parts of an operand: (outer, 3, k) where k is contiguous in memory, (3, k, outer) where not.
struct Parts {
  bool k_major;
  int64_t rows, cols, padded_rows, padded_cols, ld, part;  // of the operand; of its parts
  int64_t bytes() const { return ceil_div(kParts * padded_rows * padded_cols * 2, 256) * 256; }
  int64_t map_rows() const { return k_major ? rows : kParts * padded_rows; }
  int64_t map_cols() const { return k_major ? kParts * padded_cols : padded_cols; }
};
Parts parts_of(bool k_major, int64_t outer, int64_t k) {
  const int64_t padded_k = ceil_div(k, wgmma::kTileK) * wgmma::kTileK;
  if (k_major) return {true, outer, k, outer, padded_k, kParts * padded_k, padded_k};
  const int64_t padded = ceil_div(outer, 8) * 8;
  return {false, k, outer, padded_k, padded, padded, padded_k * padded};
}
Parts parts_of_a(const MatmulArgs& x) { return parts_of(x.ta == Transpose::no, x.m, x.k); }
Parts parts_of_b(const MatmulArgs& x) { return parts_of(x.tb == Transpose::yes, x.n, x.k); }

}  // namespace

size_t matmul_bf16x6_workspace(const MatmulArgs& x) noexcept {
  return static_cast<size_t>(parts_of_a(x).bytes() + parts_of_b(x).bytes());
}

Fit matmul_bf16x6_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 || x.d_type != DType::f32) return {"multiplies f32 only"};
  if (x.ta == Transpose::yes && x.tb == Transpose::yes) return {"op(A) and op(B) both transposed"};
  if (x.batch != 1) return {"one product at a time"};
  if (!x.epilogue.is_plain()) return {"has no epilogue but the bias"};
  if (x.k == 0) return {"nothing to multiply (k = 0)"};
  if (std::max({x.m, x.n, x.k}) >= int64_t{1} << 28) return {"a size exceeds 2^28"};
  if (reinterpret_cast<uintptr_t>(x.d) % 8 != 0 || x.ldd % 2 != 0)
    return {"D is not aligned to 8 bytes in every row"};
  if (matmul_bf16x6_workspace(x) > ctx.workspace_bytes)
    return {"the workspace has no room for the parts, 6 bytes an element of A and B"};
  return wgmma::device_fits(ctx);
}

void matmul_bf16x6_cuda(const Context& ctx, const MatmulArgs& x) {
  const wgmma::Form form = wgmma::form_of(x);
  const Parts a = parts_of_a(x), b = parts_of_b(x);
  auto* const a_parts = static_cast<char*>(ctx.workspace);
  auto* const b_parts = a_parts + a.bytes();
  const auto cut = [&](const Parts& to, const void* from, int64_t ld, void* parts) {
    SAT_CUDA(wgmma::cut_in_parts(static_cast<const float*>(from), to.rows, to.cols, ld, parts,
                                 to.padded_rows, to.padded_cols, to.ld, to.part,
                                 cuda::stream_of(ctx)));
  };
  cut(a, x.a, x.lda, a_parts);
  cut(b, x.b, x.ldb, b_parts);
  wgmma::Problem p{};
  p.a = wgmma::map_of(a_parts, DType::bf16, a.map_rows(), a.map_cols(), a.ld,
                      a.k_major ? kTile : wgmma::kTileK);
  p.b = wgmma::map_of(b_parts, DType::bf16, b.map_rows(), b.map_cols(), b.ld,
                      b.k_major ? kTile / 2 : wgmma::kTileK / 2);
  p.out = x.d;
  p.c = x.c;
  p.bias = x.bias;
  p.ldc = x.ldc;
  p.ldd = x.ldd;
  p.alpha = x.alpha;
  p.beta = x.beta;
  p.m = static_cast<int>(x.m);
  p.n = static_cast<int>(x.n);
  p.k_blocks = static_cast<int>(ceil_div(x.k, wgmma::kTileK));
  p.split_blocks = p.k_blocks;
  p.part_k = p.k_blocks * wgmma::kTileK;
  p.pairs_m = static_cast<int>(ceil_div(x.m, 2 * kTile));
  p.tiles_n = static_cast<int>(ceil_div(x.n, kTile));
  p.units = p.pairs_m * p.tiles_n;
  p.band = std::min(8, p.pairs_m);
  const int blocks = std::min(wgmma::blocks_of(ctx), 2 * p.units);
  SAT_CUDA(wgmma::launch_parts(form, p, blocks, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
