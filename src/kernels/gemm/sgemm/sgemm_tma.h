// SPDX-License-Identifier: Apache-2.0
// Between the host side of rung 9 (sgemm_tma_cuda.cpp) and its kernels, one file per layout.
#pragma once
#include <cstdint>

namespace saturate::kernels {

struct TmaProblem {
  const float* c;
  float* d;
  const float* bias;  // or null
  int64_t ldc, ldd;
  int m, n, k_tiles;  // tiles along k
  int down, across;   // output tiles
  int splits;         // blocks of a cluster, which share k
  float alpha, beta;
  bool plain;  // no beta, no bias, and rows of d start on 16 bytes
};

// Which kernel: kColumns of its tile, and how its operands are stored.
struct TmaKernel {
  const void* function;
  int threads, shared_bytes;
};
// along_k: each row of the stored matrix runs along k (A not transposed, B transposed).
// kColumns: 128 or 256 (instances: cmake/gemm_instances.cmake).
template <int kColumns>
TmaKernel sgemm_tma_kernel_of(bool a_along_k, bool b_along_k);

// Of a tile along k. Two blocks of 128 columns share a multiprocessor's memory.
constexpr int tma_depth(int columns) { return columns == 256 ? 32 : 16; }
constexpr int kTmaRows = 128;  // of a block's tile

}  // namespace saturate::kernels
