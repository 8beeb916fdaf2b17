// SPDX-License-Identifier: Apache-2.0
// The three products of conv2d_sources.cuh in fp32: tiles of 64 x 64 in shared memory, 2 x 8 sums a
// thread.
#pragma once
#include "kernels/conv/conv2d_gemm.h"
#include "kernels/conv/conv2d_sources.cuh"
#include "kernels/gemm/mma/mma_block.cuh"
#include "runtime/cuda/check.h"

namespace saturate::kernels::conv {

using mma::Storage;

constexpr int kPlainEdge = 64, kPlainDepth = 16, kPlainThreads = 256;
using PlainTile = float[kPlainDepth][kPlainEdge + 4];  // + 4 keeps 16-byte rows, moves the banks

// 128 threads bring one operand's tile: eight elements each. `thread`: 0..127.
template <Storage kStorage, class Source>
__device__ __forceinline__ void load_plain(PlainTile& tile, const Source& source, int extent0,
                                           int depth0, int thread) {
  constexpr bool kByDepth = kStorage == Storage::by_depth;
  constexpr int kChunks = (kByDepth ? kPlainDepth : kPlainEdge) / 8;
  const int row = thread / kChunks, col = thread % kChunks * 8;
  int valid = 0;
  const float* from =
      source.chunk((kByDepth ? extent0 : depth0) + row, (kByDepth ? depth0 : extent0) + col, valid);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& to = kByDepth ? tile[col + i][row] : tile[row][col + i];
    to = i < valid ? from[i] : 0.0f;
  }
}

template <Storage kStorageA, Storage kStorageB, class A, class B, class Out>
__global__ void __launch_bounds__(kPlainThreads)
    conv2d_plain_kernel(const __grid_constant__ A a, const __grid_constant__ B b,
                        const __grid_constant__ Out out, int depth, int split_depth) {
  __shared__ PlainTile left, right;
  const int thread = static_cast<int>(threadIdx.x);
  const int m0 = static_cast<int>(blockIdx.x) * kPlainEdge;
  const int n0 = static_cast<int>(blockIdx.y) * kPlainEdge;
  const int split = static_cast<int>(blockIdx.z), begin = split * split_depth;
  const int end = min(depth, begin + split_depth);
  const int row = thread / 8 * 2, col = thread % 8 * 8;
  float sums[2][8] = {};
  for (int at = begin; at < end; at += kPlainDepth) {
    if (thread < 128) {
      load_plain<kStorageA>(left, a, m0, at, thread);
    } else {
      load_plain<kStorageB>(right, b, n0, at, thread - 128);
    }
    __syncthreads();  // both tiles are complete
#pragma unroll
    for (int k = 0; k < kPlainDepth; ++k) {
      const float upper = left[k][row], lower = left[k][row + 1];
      float v[8];
      load(v, &right[k][col]);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        sums[0][i] += upper * v[i];
        sums[1][i] += lower * v[i];
      }
    }
    __syncthreads();  // both tiles have been read
  }
  out(split, m0 + row, n0 + col, sums[0]);
  out(split, m0 + row + 1, n0 + col, sums[1]);
}

template <class T, Storage kStorageA, Storage kStorageB, class A, class B, class Out>
void launch(const Context& ctx, const A& a, const B& b, const Out& out, int m, int n, int depth,
            const Split& split, bool) {
  const dim3 grid(static_cast<unsigned>((m + kPlainEdge - 1) / kPlainEdge),
                  static_cast<unsigned>((n + kPlainEdge - 1) / kPlainEdge),
                  static_cast<unsigned>(split.count));
  conv2d_plain_kernel<kStorageA, kStorageB>
      <<<grid, kPlainThreads, 0, cuda::stream_of(ctx)>>>(a, b, out, depth, split.depth);
  SAT_CUDA_LAUNCHED("conv2d_plain_kernel");
}

}  // namespace saturate::kernels::conv
