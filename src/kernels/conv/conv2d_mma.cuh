// SPDX-License-Identifier: Apache-2.0
// The three products of conv2d_sources.cuh on the tensor-core tiles of matmul.
#pragma once
#include "kernels/conv/conv2d_gemm.h"
#include "kernels/conv/conv2d_sources.cuh"
#include "kernels/gemm/mma/mma_block.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::conv {

using mma::Loads;
using mma::Storage;
using Tile = mma::MmaTile<64, 64, 32, 2, 2, 4, 3>;

template <class T, Storage kStorageA, Storage kStorageB, Loads kLoads, class A, class B, class Out>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kBlocks)
    conv2d_mma_kernel(const __grid_constant__ A a, const __grid_constant__ B b,
                      const __grid_constant__ Out out, int depth, int split_depth) {
#if __CUDA_ARCH__ >= 800
  constexpr bool kHere = kLoads != Loads::wide;
#else
  constexpr bool kHere = kLoads != Loads::async && std::is_same_v<T, __half>;
#endif
  if constexpr (kHere) {
    extern __shared__ __align__(1024) unsigned char shared[];
    using Block = mma::MmaBlock<T, Tile, kStorageA, kStorageB, kLoads, A, B>;
    typename Block::Sums sums = {};
    const int m0 = static_cast<int>(blockIdx.x) * Tile::kM;
    const int n0 = static_cast<int>(blockIdx.y) * Tile::kN;
    const int split = static_cast<int>(blockIdx.z), begin = split * split_depth;
    Block::accumulate(sums, a, b, m0, n0, begin, min(depth, begin + split_depth), shared);
    Block::template drain<false>(sums, shared, [&](int r, int c, float(&v)[8], float(&)[8]) {
      out(split, m0 + r, n0 + c, v);
    });
  }
}

template <class T, Storage kStorageA, Storage kStorageB, class A, class B, class Out>
void launch(const Context& ctx, const A& a, const B& b, const Out& out, int m, int n, int depth,
            const Split& split, bool wide) {
  int major = 0;
  SAT_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx.device.index));
  const dim3 grid(static_cast<unsigned>((m + Tile::kM - 1) / Tile::kM),
                  static_cast<unsigned>((n + Tile::kN - 1) / Tile::kN),
                  static_cast<unsigned>(split.count));
  const auto go = [&](auto kernel, Loads loads) {
    kernel<<<grid, Tile::kThreads, Tile::bytes(loads), cuda::stream_of(ctx)>>>(a, b, out, depth,
                                                                               split.depth);
  };
  if (!wide) {
    go(conv2d_mma_kernel<T, kStorageA, kStorageB, Loads::narrow, A, B, Out>, Loads::narrow);
  } else if (major >= 8) {
    go(conv2d_mma_kernel<T, kStorageA, kStorageB, Loads::async, A, B, Out>, Loads::async);
  } else if constexpr (std::is_same_v<T, __half>) {
    go(conv2d_mma_kernel<T, kStorageA, kStorageB, Loads::wide, A, B, Out>, Loads::wide);
  }
  SAT_CUDA_LAUNCHED("conv2d_mma_kernel");
}

}  // namespace saturate::kernels::conv
