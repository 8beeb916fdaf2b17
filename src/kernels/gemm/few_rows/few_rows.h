// SPDX-License-Identifier: Apache-2.0
// Products of few rows by a weight matrix, as generating text takes them: D = A B^T with at most 64
// rows of A. Such a product is as fast as B arrives from memory.
//
// A warp takes kColumns8 times eight rows of B, which are columns of D, with a part of k, and keeps
// its sums in registers; what it reads goes from global memory to the operands of mma.m16n8k16
// without shared memory: because a sum may take its terms in any order, a thread's sixteen bytes
// are the k of two products, of A and B alike. The warps of a block then add their parts of k in
// shared memory in a fixed order, eight columns of one row a thread.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/gemm/matmul.h"

namespace saturate::kernels::few_rows {

constexpr int kWarps = 8;  // of a block
constexpr int kMostRows = 64;

/// How a product is cut. Results depend on `warps_k` alone, in the order of their sums.
struct Plan {
  int rows8 = 1;     // rows of A in units of eight: 1, 2, 4 or 8
  int columns8 = 1;  // columns of D a warp, in units of eight: 1, 2 or, up to 32 rows, 4
  int warps_k = 8;   // of a block, that share k: 1, 2, 4 or 8; the others take other columns
};

constexpr int columns_of_block(const Plan& p) { return 8 * p.columns8 * (kWarps / p.warps_k); }

// The plan for a problem that fits, on a device of so many multiprocessors.
Plan plan_for(const MatmulArgs& x, int multiprocessors);

// Launches it, on Hopper and later before the kernel before it ends. T: bf16 or f16.
template <class T>
cudaError_t launch(const MatmulArgs& x, const Plan& plan, bool early, cudaStream_t stream);

}  // namespace saturate::kernels::few_rows
