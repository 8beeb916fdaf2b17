// SPDX-License-Identifier: Apache-2.0
// What a launch of the Hopper forward kernel gets (forward_kernel.cuh).
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"

namespace saturate::kernels::attention {

struct ForwardProblem {
  CUtensorMap q, k, v;  // rows of all heads; boxes of 64 columns
  void* o;
  float* lse;
  const int32_t* cu_q;
  const int32_t* cu_k;
  int64_t o_stride, q_rows;
  int sequences, heads, group;  // group: query heads of one key head
  int parts;                    // pieces of work of one (sequence, head): see forward_kernel.cuh
  int items;                    // sequences * heads * parts
  bool causal, bottom_right;
  float scale_log2;  // scale * log2(e): softmax in powers of two
  float dropout;
  RngRef rng;
};

constexpr int kForwardQueries = 128;  // rows of a tile
// Keys of a tile; wide heads with dropout have registers for 64 only.
constexpr int forward_keys(int head_size, bool drops) {
  return head_size == 128 && drops ? 64 : 128;
}

// On `blocks` blocks. Head size 64 or 128, bf16 or f16. Returns the launch's error.
cudaError_t launch_forward_d64(DType type, const ForwardProblem& p, int blocks,
                               cudaStream_t stream);
cudaError_t launch_forward_d128(DType type, const ForwardProblem& p, int blocks,
                                cudaStream_t stream);

}  // namespace saturate::kernels::attention
