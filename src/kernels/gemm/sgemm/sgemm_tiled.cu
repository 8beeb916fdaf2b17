// SPDX-License-Identifier: Apache-2.0
// Rung 8 ahead of time: three parameter sets, and which one a problem gets when nothing was tuned.
#include "kernels/gemm/sgemm/sgemm_tiled.cuh"

#include "kernels/gemm/sgemm/sgemm_tiled_memory.h"
#include "kernels/gemm/sgemm/sgemm_vectorised.cuh"

namespace saturate::kernels {
namespace {

template <int BM, int BN, int BK, int TM, int TN, int WM, int WN, int STAGES, int ALIGN>
void launch(const Context& ctx, const Sgemm& p) {
  using Tile = SgemmTile<BM, BN, BK, TM, TN, WM, WN, STAGES>;
  static_assert(sgemm_tiled_shared_bytes(BM, BN, BK, STAGES) == Tile::kSharedBytes);
  const auto kernel = sgemm_tiled<BM, BN, BK, TM, TN, WM, WN, STAGES, ALIGN>;
  if constexpr (Tile::kSharedBytes > 48 * 1024) {
    SAT_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  Tile::kSharedBytes));
  }
  kernel<<<sgemm_blocks(p, BM, BN), Tile::kThreads, Tile::kSharedBytes, cuda::stream_of(ctx)>>>(
      p.m, p.n, p.k, p.alpha, p.a, p.lda, p.b, p.ldb, p.beta, p.c, p.ldc, p.d, p.ldd);
  SAT_CUDA_LAUNCHED("sgemm_tiled");
}

// The larger the tile, the fewer bytes and loads a multiply-add needs; but a grid that does not
// fill the chip costs more.
template <int ALIGN>
void launch_best(const Context& ctx, const Sgemm& p) {
  int processors = 0;
  SAT_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, ctx.device.index));
  const auto fills = [&](int64_t rows, int64_t cols, int64_t blocks_each) {
    return 10 * sgemm_blocks(p, rows, cols) >= 9 * static_cast<int64_t>(processors) * blocks_each;
  };
  if (fills(256, 128, 1)) return launch<256, 128, 16, 16, 8, 64, 64, 3, ALIGN>(ctx, p);
  if (fills(128, 64, 1)) return launch<128, 64, 16, 8, 8, 64, 32, 3, ALIGN>(ctx, p);
  launch<64, 64, 16, 8, 4, 32, 32, 3, ALIGN>(ctx, p);
}

}  // namespace

void sgemm_tiled_cuda(const Context& ctx, const MatmulArgs& args) {
  const Sgemm p = sgemm_problem(args);
  const SgemmAlignment aligned = sgemm_alignment(p);
  aligned.a&& aligned.b&& aligned.d ? launch_best<4>(ctx, p) : launch_best<1>(ctx, p);
}

}  // namespace saturate::kernels
