// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_bf16x6.h"

#include <algorithm>

#include "kernels/gemm/wgmma/wgmma_args.h"
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

int64_t bytes_of(MatmulArgs x, int64_t m, int64_t k) {
  x.m = m;
  x.k = k;
  return parts_of_a(x).bytes() + parts_of_b(x).bytes();
}

// What is multiplied at a time so that the parts fit in `bytes`: all of it, or rows of D, or, when
// B alone takes too much, values of k. k == 0: nothing useful fits.
struct Piece {
  int64_t m, k;
};
Piece piece_of(const MatmulArgs& x, int64_t bytes) {
  if (bytes_of(x, x.m, x.k) <= bytes) return {x.m, x.k};
  constexpr int64_t kRows = 2048,
                    kSums = 256;  // at least; less would not fill the chip, or add often
  const int64_t rows = (bytes - bytes_of(x, 0, x.k) - 256) /
                       (kParts * 2 * ceil_div(x.k, wgmma::kTileK) * wgmma::kTileK) / kRows * kRows;
  if (rows >= kRows) return {rows, x.k};
  const int64_t sums = (bytes - 512) / (kParts * 2 * (ceil_div(x.m, 8) + ceil_div(x.n, 8)) * 8) /
                       wgmma::kTileK * wgmma::kTileK;
  return {x.m, sums >= kSums ? sums : 0};
}

void run_piece(const Context& ctx, const MatmulArgs& x);

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
  if (piece_of(x, static_cast<int64_t>(ctx.workspace_bytes)).k == 0)
    return {
        "the workspace has no room for parts of 256 values of k, 6 bytes an element of A and B"};
  return wgmma::device_fits(ctx);
}

Fit matmul_bf16x6_cuda_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.allow_tf32) return {"TF32 is allowed, which is faster"};
  if (std::min({x.m, x.n, x.k}) < 256 ||
      2.0 * static_cast<double>(x.m * x.n) * static_cast<double>(x.k) < 2e9)
    return {"too small to pay for the cutting"};
  return matmul_bf16x6_cuda_fits(ctx, x);
}

void matmul_bf16x6_cuda(const Context& ctx, const MatmulArgs& args) {
  const Piece piece = piece_of(args, static_cast<int64_t>(ctx.workspace_bytes));
  const auto part_of = [](const void* data, int64_t elements) {
    return static_cast<const float*>(data) + elements;
  };
  for (int64_t m = 0; m < args.m; m += piece.m) {
    for (int64_t k = 0; k < args.k; k += piece.k) {
      MatmulArgs x = args;
      x.m = std::min(piece.m, args.m - m);
      x.k = std::min(piece.k, args.k - k);
      x.a = part_of(args.a, x.ta == Transpose::yes ? k * x.lda + m : m * x.lda + k);
      x.b = part_of(args.b, x.tb == Transpose::yes ? k : k * x.ldb);
      x.c = part_of(args.c, m * x.ldc);
      x.d = static_cast<float*>(args.d) + m * x.ldd;
      if (k > 0) {  // on top of what is there
        x.c = x.d;
        x.ldc = x.ldd;
        x.beta = 1.0f;
        x.bias = nullptr;
      }
      run_piece(ctx, x);
    }
  }
}

namespace {

void run_piece(const Context& ctx, const MatmulArgs& x) {
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
  wgmma::Problem p = wgmma::problem_of(x, kTile, kTile, wgmma::kTileK, 1, 8);
  p.a = wgmma::map_of(a_parts, DType::bf16, a.map_rows(), a.map_cols(), a.ld,
                      a.k_major ? kTile : wgmma::kTileK);
  p.b = wgmma::map_of(b_parts, DType::bf16, b.map_rows(), b.map_cols(), b.ld,
                      b.k_major ? kTile / 2 : wgmma::kTileK / 2);
  p.part_k = p.k_blocks * wgmma::kTileK;
  SAT_CUDA(wgmma::launch_parts(form, p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
}

}  // namespace

}  // namespace saturate::kernels
