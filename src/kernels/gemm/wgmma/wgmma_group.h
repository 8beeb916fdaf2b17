// SPDX-License-Identifier: Apache-2.0
// Several weight gradients in one launch: what it gets.
#pragma once
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

constexpr int kMostInGroup = 24;  // 9.5 of the 32 KiB that a kernel's arguments may have
constexpr int kGroupTileM = 128, kGroupTileN = 256;

// Products without splits, those with the longest sums first: pairs of blocks take units in turns,
// so that the short ones fill the last round.
struct Group {
  Problem product[kMostInGroup];
  float* column_sum[kMostInGroup];  // (m), of A over k; or null
  bool adds[kMostInGroup];          // to what is there
  int first[kMostInGroup + 1];      // unit, of each product; behind the last all of them
  int count;
};

// T: __nv_bfloat16 or __half; results in f32. On `blocks` blocks (an even number).
template <class T>
cudaError_t launch_group(const Group& group, int blocks, cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
