// SPDX-License-Identifier: Apache-2.0
// What a launch of the grouped Hopper kernels gets, and their list.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gemm/grouped/grouped_gemm.h"

namespace saturate::kernels::wgmma {

constexpr int kMostGroups = 1024;

struct GroupedProblem {
  CUtensorMap a, b;
  CUtensorMap d;  // of a weight gradient
  void* out;
  const int32_t* offsets;  // (groups + 1)
  int64_t ldd;
  float beta;
  int groups, rows;
  int m;         // rows of a weight gradient
  int n;         // columns of the result
  int k_blocks;  // of 64, in forward and input gradient
  int band;      // pairs of rows of tiles that are walked together
};

// T: __nv_bfloat16 or __half (instances: cmake/gemm_instances.cmake).
template <class T, GroupedForm kForm>
cudaError_t launch_grouped(const GroupedProblem& p, int blocks, cudaStream_t stream);

// Tiles of a weight gradient and of the two others.
constexpr int kGroupedTileM = 128, kGroupedTileN = 256, kGroupedWeightTileN = 192;
// Rows of 128 bytes that a warp stores at a time.
constexpr int kSlabRows = 16;

}  // namespace saturate::kernels::wgmma
