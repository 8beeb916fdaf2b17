// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/wgmma/wgmma_args.h"
#include "kernels/gemm/wgmma/wgmma_loss.h"
#include "kernels/loss/linear_cross_entropy_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using wgmma::ceil_div;
using wgmma::kLossTileM;
using wgmma::kLossTileN;
using wgmma::kTileK;
using wgmma::kTurnTileN;

ColumnSumArgs class_sums(const LinearCrossEntropyArgs& a) {
  return {.rows = a.vocab, .cols = a.width, .ld = a.width, .dtype = a.dtype};
}

// Parts of the scratch, each aligned to 256 bytes; at null their sum is the last one's end.
struct Scratch {
  LossRows rows;
  int64_t bytes = 0;
  explicit Scratch(const LinearCrossEntropyArgs& a) {
    const auto take = [&](int64_t size) {
      char* const at = static_cast<char*>(a.scratch) + bytes;
      bytes += ceil_div(size, 256) * 256;
      return at;
    };
    const auto floats = [&](int64_t count) { return reinterpret_cast<float*>(take(count * 4)); };
    rows.tiles = ceil_div(a.ld, kTurnTileN);
    rows.x_groups = ceil_div(a.rows, kLossGroupRows);
    rows.target_logit = floats(a.rows);
    rows.tile_sums = floats(rows.tiles * a.rows);
    if (!(a.label_smoothing > 0.0f)) return;
    rows.class_sum = floats(a.width);
    rows.x_sum = floats(a.width);
    rows.x_partial = floats(rows.x_groups * a.width);
    rows.column_scratch = take(column_sum_scratch_bytes({DeviceKind::cuda, 0}, class_sums(a)));
  }
};

}  // namespace

int64_t linear_cross_entropy_wgmma_scratch_bytes(const LinearCrossEntropyArgs& args) {
  LinearCrossEntropyArgs a = args;
  a.scratch = nullptr;
  return Scratch(a).bytes;
}

void linear_cross_entropy_wgmma_cuda(const Context& ctx, const LinearCrossEntropyArgs& a) {
  const Scratch scratch(a);
  launch_target_logits(ctx, a, scratch.rows);
  const MatmulArgs product{.d = a.e,
                           .bias = a.bias,
                           .m = a.rows,
                           .n = a.ld,
                           .k = a.width,
                           .ldd = a.ld,
                           .alpha = kMostExponent};
  wgmma::Problem p = wgmma::problem_of(product, kLossTileM, kTurnTileN, kTileK, 1, 8);
  p.a = wgmma::map_of(a.x, a.dtype, a.rows, a.width, a.width, kLossTileM);
  p.b = wgmma::map_of(a.w, a.dtype, a.ld, a.width, a.width, kTurnTileN / 2);
  p.c = scratch.rows.target_logit;
  p.partial = scratch.rows.tile_sums;
  p.classes = static_cast<int>(a.vocab);
  SAT_CUDA(wgmma::launch_exponentials<__nv_bfloat16>(p, wgmma::blocks_for(ctx, p),
                                                     cuda::stream_of(ctx)));
  launch_loss_rows(ctx, a, scratch.rows);
}

void linear_cross_entropy_backward_wgmma_cuda(const Context& ctx,
                                              const LinearCrossEntropyBackwardArgs& a) {
  const MatmulArgs product{
      .d = a.d_x, .bias = a.uniform, .m = a.rows, .n = a.width, .k = a.ld, .ldd = a.width};
  wgmma::Problem p = wgmma::problem_of(product, kLossTileM, kLossTileN, kTileK, 1, 8);
  p.a = wgmma::map_of(a.e, a.dtype, a.rows, a.ld, a.ld, kLossTileM);
  p.b = wgmma::map_of(a.w, a.dtype, a.ld, a.width, a.width, kTileK / 2);
  p.c = a.factor;
  SAT_CUDA(
      wgmma::launch_scaled_rows<__nv_bfloat16>(p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
