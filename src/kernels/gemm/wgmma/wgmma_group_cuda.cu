// SPDX-License-Identifier: Apache-2.0
// Weight gradients of several layers as one product of many tiles: alone each has 4 to 36 pairs of
// tiles for 66 pairs of blocks and is cut into splits, whose sums another kernel adds.
#include "kernels/gemm/wgmma/wgmma_group.h"
#include "kernels/gemm/wgmma/wgmma_launch.cuh"

namespace saturate::kernels::wgmma {
namespace {

// Ones behind the barriers: A's columns are summed by a product with them, of eight columns, since A is
// in shared memory for the tensor cores anyway. That is what a bias's gradient takes.
template <class T>
struct GroupTile : Tile<T, float, kGroupTileM, kGroupTileN, 4, false, false, false> {
  using Base = Tile<T, float, kGroupTileM, kGroupTileN, 4, false, false, false>;
  static constexpr uint32_t kOnesAt = Base::kBarriersAt + 1024, kOnesBytes = 1024;
  static constexpr uint32_t kSharedBytes = kOnesAt + kOnesBytes + 1024;
  static_assert(Base::kStages * 16 <= 1024 && kOnesAt % 1024 == 0 && kSharedBytes <= 232448);
};

template <class P>
__device__ inline void write_ones(char* at) {
  for (uint32_t i = threadIdx.x; i < P::kOnesBytes / 2; i += kThreads)
    reinterpret_cast<typename P::T*>(at)[i] = typename P::T(1.0f);
  publish_stores();
}

// multiply() of one unit, and of A's columns beside it.
template <class P>
__device__ inline void multiply_and_sum(float (&sum)[P::kMmas][P::kN / 2], float (&columns)[4],
                                        bool sums, int blocks, uint32_t step, int row,
                                        uint32_t tiles, uint32_t full, uint32_t empty) {
  static_assert(P::kMmas == 1 && !P::kKMajorA && !P::kKMajorB);
  constexpr uint32_t kStep = 2048;
  const uint32_t a0 = descriptor_low(tiles + row * 128, 8192);
  const uint32_t b0 = descriptor_low(tiles + P::kBytesA, 8192);
  const uint64_t ones = descriptor(descriptor_low(tiles + P::kOnesAt, 16), 1024);
  for (int i = 0; i < blocks; ++i, ++step) {
    const uint32_t stage = step % P::kStages, at = stage * (P::kStageBytes / 16);
    barrier_wait(full + stage * 8, step / P::kStages & 1);
    if (sums) {
      mma_fence();
#pragma unroll
      for (int kk = 0; kk < kTileK / 16; ++kk)
        mma_8<typename P::T, 1>(columns, descriptor(a0 + at + kk * kStep / 16, 1024), ones, i | kk);
    }
    mma_fence();
#pragma unroll
    for (int kk = 0; kk < kTileK / 16; ++kk)
      mma<typename P::T, P::kN, 1, 1>(sum[0], descriptor(a0 + at + kk * kStep / 16, 1024),
                                      descriptor(b0 + at + kk * kStep / 16, 1024), i | kk);
    mma_commit();
    if (i > 0) {
      mma_wait<1>();
      release<P>(empty, step - 1);
    }
  }
  mma_wait<0>();
  if (blocks > 0) release<P>(empty, step - 1);
  settle(sum[0]);
  settle(columns);
}

// All eight columns of `columns` are alike.
template <class P>
__device__ inline void write_columns(const Group& g, int i, const Unit& x, int row,
                                     const float (&columns)[4]) {
  const int thread = static_cast<int>(threadIdx.x % 128), lane = thread % 32;
  const int m = x.m + row + thread / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float* const to = g.column_sum[i] + m + half * 8;
    if (lane % 4 == 0 && m + half * 8 < g.product[i].m)
      *to = g.adds[i] ? *to + columns[half * 2] : columns[half * 2];
  }
}

// kSums: some product wants its columns summed.
template <class P, bool kSums>
__global__ void __launch_bounds__(kThreads, 1)
    weight_gradient_group_kernel(const __grid_constant__ Group g) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char shared[];
  const uint32_t tiles = (shared_address(shared) + 1023) & ~1023u;
  const uint32_t full = tiles + P::kBarriersAt, empty = full + P::kStages * 8;
  const uint32_t rank = cluster_rank();
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x / 128), 0);
  if (threadIdx.x == 0) open_pipeline<P>(g.product[0], full, empty, 2);
  if constexpr (kSums) write_ones<P>(shared + (tiles - shared_address(shared)) + P::kOnesAt);
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
      if constexpr (kSums) {
        const bool sums = x.n == 0 && g.column_sum[i] != nullptr;
        float columns[4];
        multiply_and_sum<P>(sum, columns, sums, blocks, step, row, tiles, full, empty);
        if (sums) write_columns<P>(g, i, x, row, columns);
      } else {
        multiply<P>(sum, blocks, step, row, tiles, full, empty);
      }
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
  using P = GroupTile<T>;
  for (int i = 0; i < group.count; ++i)
    if (group.column_sum[i] != nullptr)
      return launch_pairs<weight_gradient_group_kernel<P, true>, P::kSharedBytes>(group, blocks,
                                                                                  stream);
  return launch_pairs<weight_gradient_group_kernel<P, false>, P::kSharedBytes>(group, blocks,
                                                                               stream);
}
template cudaError_t launch_group<__nv_bfloat16>(const Group&, int, cudaStream_t);
template cudaError_t launch_group<__half>(const Group&, int, cudaStream_t);

}  // namespace saturate::kernels::wgmma
