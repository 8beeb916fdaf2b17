// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/mma/mma_gemm.cuh"

namespace saturate::kernels::mma {
namespace {

constexpr int kThreads = 128;

// A thread: eight columns of one row of D.
template <class T>
__global__ void __launch_bounds__(kThreads)
    matmul_mma_join_kernel(const __grid_constant__ Work w, int packs) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t row = at / packs;
  if (row >= w.m) return;
  const int col = static_cast<int>(at % packs) * 8;
  const bool gated = w.out.e.kind == EpilogueKind::gated;
  float v[8] = {}, up[8] = {};
  for (int s = 0; s < w.splits; ++s) {
    const float* from = w.partial + (static_cast<int64_t>(s) * w.m + row) * w.partial_ld;
    float part[8];
    load(part, from + (gated ? 2 * col : col));
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += part[i];
    if (!gated) continue;
    load(part, from + 2 * col + 8);
#pragma unroll
    for (int i = 0; i < 8; ++i) up[i] += part[i];
  }
  gated ? w.out.template apply<T, true>(row, col, v, up)
        : w.out.template apply<T, false>(row, col, v, up);
}

}  // namespace

void launch_join(const Context& ctx, const MatmulArgs& x, const Plan& p) {
  const int packs = static_cast<int>((x.n + 7) / 8);
  const auto blocks = static_cast<unsigned>((x.m * packs + kThreads - 1) / kThreads);
  const cudaStream_t stream = cuda::stream_of(ctx);
  const Work w = work_of(ctx, x, p);
  if (x.ab_type == DType::f16) {
    matmul_mma_join_kernel<__half><<<blocks, kThreads, 0, stream>>>(w, packs);
  } else {
    matmul_mma_join_kernel<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(w, packs);
  }
  SAT_CUDA_LAUNCHED("matmul_mma_join_kernel");
}

}  // namespace saturate::kernels::mma
