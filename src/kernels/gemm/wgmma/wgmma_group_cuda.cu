// SPDX-License-Identifier: Apache-2.0
// Weight gradients of several layers as one product of many tiles: alone each has 4 to 36 pairs of
// tiles for 66 pairs of blocks and is cut into splits, whose sums another kernel adds.
#include "kernels/gemm/wgmma/wgmma_group.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {
namespace {

template <class P>
__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_group_kernel(const __grid_constant__ Group g) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const uint32_t rank = cluster_rank();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(g.product[0], full, empty, 2);
  cluster_sync();
  await_previous_kernel();
  const int units = g.first[g.count];
  int i = 0;  // product of the unit; units only grow
  uint32_t step = 0;
  if (group == 0) {
    give_registers<P::kProducerRegisters>();
    if (threadIdx.x == 0) {
      for (int u = blockIdx.x / kCluster; u < units; u += gridDim.x / kCluster) {
        while (u >= g.first[i + 1]) ++i;
        const Problem& p = g.product[i];
        produce_unit<P>(p, unit_of<P>(p, u - g.first[i], rank), step, tiles, full, empty, rank);
      }
    }
  } else {
    take_registers<P::kConsumerRegisters>();
    const int row = (group - 1) * P::kRows;
    for (int u = blockIdx.x / kCluster; u < units; u += gridDim.x / kCluster) {
      while (u >= g.first[i + 1]) ++i;
      const Problem& p = g.product[i];
      const Unit x = unit_of<P>(p, u - g.first[i], rank);
      const int blocks = x.last_k - x.first_k;
      float sum[P::kMmas][P::kN / 2];
      multiply<P>(sum, blocks, step, row, tiles, full, empty);
      finish<P>(p, sum, TileBias<P>{}, x, row);
      write_floats<P>(p, sum, x, row);
      step += blocks;
    }
  }
  cluster_sync();  // the other block may still deliver to this one or arrive at its barriers
#endif
}

}  // namespace

template <class T>
cudaError_t launch_group(const Group& group, int blocks, cudaStream_t stream) {
  using P = Tile<T, float, kGroupTileM, kGroupTileN, 4, false, false, false>;
  return launch_pairs<weight_gradient_group_kernel<P>, P::kSharedBytes>(group, blocks, stream);
}
template cudaError_t launch_group<__nv_bfloat16>(const Group&, int, cudaStream_t);
template cudaError_t launch_group<__half>(const Group&, int, cudaStream_t);

}  // namespace saturate::kernels::wgmma
