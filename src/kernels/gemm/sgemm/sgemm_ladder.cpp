// SPDX-License-Identifier: Apache-2.0
#include "base/features.h"
#include "kernels/gemm/sgemm/sgemm.h"

namespace saturate::kernels {

#if SATURATE_WITH_CUDA
namespace {
// clang-format off
constexpr SgemmRung kRungs[] = {
    {"naive", "sgemm_naive.cu", 0.4, sgemm_plain_fits, sgemm_naive_cuda},
    {"coalesced", "sgemm_coalesced.cu", 4, sgemm_plain_fits, sgemm_coalesced_cuda},
    {"shared memory", "sgemm_shared.cu", 7, sgemm_plain_fits, sgemm_shared_cuda},
    {"1D block tiling", "sgemm_column.cu", 15, sgemm_plain_fits, sgemm_column_cuda},
    {"2D block tiling", "sgemm_patch.cu", 30, sgemm_plain_fits, sgemm_patch_cuda},
    {"vectorised", "sgemm_vectorised.cu", 36, sgemm_plain_fits, sgemm_vectorised_cuda},
    {"warp tiling", "sgemm_warptile.cu", 40, sgemm_plain_fits, sgemm_warptile_cuda},
    {"tiled, tuned", "sgemm_tiled.cuh", 52, sgemm_plain_fits, sgemm_tiled_cuda},
    {"TMA", "sgemm_tma.cuh", 57, sgemm_tma_cuda_fits, sgemm_tma_cuda},
};
// clang-format on
}  // namespace

std::span<const SgemmRung> sgemm_rungs() noexcept { return kRungs; }
#else
std::span<const SgemmRung> sgemm_rungs() noexcept { return {}; }
#endif

Fit sgemm_plain_fits(const Context&, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 || x.d_type != DType::f32) return {"only f32 in and out"};
  if (x.ta == Transpose::yes || x.tb == Transpose::yes) return {"operands must not be transposed"};
  if (x.bias != nullptr) return {"no bias in this rung"};
  return {};
}

}  // namespace saturate::kernels
