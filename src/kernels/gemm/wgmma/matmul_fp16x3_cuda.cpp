// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_fp16x3.h"

#include <algorithm>

#include "kernels/gemm/wgmma/wgmma_args.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using wgmma::ceil_div;

constexpr int kParts = 2, kTile = wgmma::kPartsTile;

// The parts of an operand: (outer, 2, k) where k is contiguous in memory, (2, k, outer) where not;
// before them what its rows or columns are scaled by.
struct Parts {
  bool k_major;
  int64_t rows, cols, padded_rows, padded_cols, ld, part;  // of the operand; of its parts
  int64_t peaks_bytes() const { return ceil_div(4 * (k_major ? rows : cols), 256) * 256; }
  int64_t bytes() const {
    return peaks_bytes() + ceil_div(kParts * padded_rows * padded_cols * 2, 256) * 256;
  }
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
  const int64_t padded_k = ceil_div(x.k, wgmma::kTileK) * wgmma::kTileK;
  const int64_t rows =
      (bytes - bytes_of(x, 0, x.k) - 512) / (kParts * 2 * padded_k + 4) / kRows * kRows;
  if (rows >= kRows) return {rows, x.k};
  const int64_t outer = (ceil_div(x.m, 8) + ceil_div(x.n, 8)) * 8;
  const int64_t sums =
      (bytes - 4 * outer - 1024) / (kParts * 2 * outer) / wgmma::kTileK * wgmma::kTileK;
  return {x.m, sums >= kSums ? sums : 0};
}

// Pieces of k that are summed beside each other, because a result of few tiles leaves most of the
// chip idle. Predicted clocks: rounds of pairs of tiles on the multiprocessors of an H100 SXM or
// H200, and adding the sums up.
int splits_of(const MatmulArgs& x, int64_t bytes_left) {
  constexpr int kMost = 16, kPairs = 66;
  constexpr double kBlockClocks = 1650, kTileClocks = 3000, kBytesAClock = 2000;
  if (x.n % 2 != 0) return 1;  // add_partials()
  const int64_t pairs = ceil_div(x.m, 2 * kTile) * ceil_div(x.n, kTile);
  const int64_t blocks = ceil_div(x.k, wgmma::kTileK);
  int best = 1;
  double fewest = 0;
  for (int s = 1; s <= kMost && blocks >= 8 * s && 4 * x.m * x.n * (s - 1) <= bytes_left; ++s) {
    const double rounds = static_cast<double>(ceil_div(pairs * s, kPairs));
    const double sums = s > 1 ? 4.0 * static_cast<double>(x.m * x.n * (2 * s + 1)) : 0;
    const double clocks =
        rounds * (static_cast<double>(ceil_div(blocks, s)) * kBlockClocks + kTileClocks) +
        sums / kBytesAClock;
    if (s > 1 && clocks >= fewest) continue;
    best = s;
    fewest = clocks;
  }
  return best;
}

void run_piece(const Context& ctx, const MatmulArgs& x);

}  // namespace

size_t matmul_fp16x3_workspace(const MatmulArgs& x) noexcept {
  const int64_t more = 4 * x.m * x.n * (splits_of(x, INT64_MAX) - 1);
  return static_cast<size_t>(parts_of_a(x).bytes() + parts_of_b(x).bytes() + more);
}

Fit matmul_fp16x3_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
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
        "the workspace has no room for parts of 256 values of k, 4 bytes an element of A and B"};
  return wgmma::device_fits(ctx);
}

Fit matmul_fp16x3_cuda_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.allow_tf32) return {"TF32 is allowed, which is faster"};
  if (std::min({x.m, x.n, x.k}) < 256 ||
      2.0 * static_cast<double>(x.m * x.n) * static_cast<double>(x.k) < 2e9)
    return {"too small to pay for the cutting"};
  return matmul_fp16x3_cuda_fits(ctx, x);
}

void matmul_fp16x3_cuda(const Context& ctx, const MatmulArgs& args) {
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
  auto* const workspace = static_cast<char*>(ctx.workspace);
  const auto left = static_cast<int64_t>(ctx.workspace_bytes) - a.bytes() - b.bytes();
  wgmma::Problem p = wgmma::problem_of(x, kTile, kTile, wgmma::kTileK, splits_of(x, left), 8);
  const auto cut = [&](const Parts& to, const void* from, int64_t ld, char* at) {
    auto* const peaks = reinterpret_cast<uint32_t*>(at);
    SAT_CUDA(
        wgmma::cut_in_parts({static_cast<const float*>(from), to.k_major, to.rows, to.cols, ld},
                            {at + to.peaks_bytes(), to.padded_rows, to.padded_cols, to.ld, to.part},
                            peaks, cuda::stream_of(ctx)));
    return peaks;
  };
  p.peaks_a = cut(a, x.a, x.lda, workspace);
  p.peaks_b = cut(b, x.b, x.ldb, workspace + a.bytes());
  p.a = wgmma::map_of(workspace + a.peaks_bytes(), DType::f16, a.map_rows(), a.map_cols(), a.ld,
                      a.k_major ? kTile : wgmma::kTileK);
  p.b = wgmma::map_of(workspace + a.bytes() + b.peaks_bytes(), DType::f16, b.map_rows(),
                      b.map_cols(), b.ld, b.k_major ? kTile / 2 : wgmma::kTileK / 2);
  p.part_k = p.k_blocks * wgmma::kTileK;
  p.partial = reinterpret_cast<float*>(workspace + a.bytes() + b.bytes());
  SAT_CUDA(wgmma::launch_parts(form, p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
  if (const int splits = p.units / (p.pairs_m * p.tiles_n); splits > 1) {
    wgmma::add_partials(p.partial, splits - 1, static_cast<float*>(x.d), x.ldd, p.m, p.n,
                        cuda::stream_of(ctx));
    SAT_CUDA_LAUNCHED("add_partials");
  }
}

}  // namespace

}  // namespace saturate::kernels
