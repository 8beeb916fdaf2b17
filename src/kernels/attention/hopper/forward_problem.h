// SPDX-License-Identifier: Apache-2.0
// What a launch of the Hopper forward kernel gets (forward_kernel.cuh).
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/dtype.h"
#include "base/philox.h"
#include "kernels/attention/hopper/windowed.h"

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
  bool causal;                  // query i sees keys 0..i
  float scale_log2;             // scale * log2(e): softmax in powers of two
  float dropout;
  RngRef rng;
  WindowedArgs windowed;  // read by the instances for it alone
};

// Rows of a tile, whether its warpgroups take turns, and how many teams of warpgroups, each with
// tiles of its own, share a block (forward_kernel.cuh).
struct ForwardShape {
  int queries, keys;
  bool turns;
  int teams = 1;
};
// Narrow heads, where exponentials take as long as products: three warpgroups on one tile, or for
// sequences that have few such tiles two teams of two. For wide heads two warpgroups in turns.
constexpr ForwardShape forward_shape(int head_size, bool is_long) {
  if (head_size == 64)
    return is_long ? ForwardShape{192, 128, false} : ForwardShape{128, 64, false, 2};
  return {128, 128, true};
}

// The instances of cmake/attention_instances.cmake: head size 64 or 128, bf16 or f16; on `blocks`
// blocks. Return the launch's error.
template <int kD, bool kDrops>
cudaError_t launch_forward_types(DType type, bool is_long, const ForwardProblem& p, int blocks,
                                 cudaStream_t stream);
// Where windows, bottom-right alignment or sinks are wanted, and kScoreMod: a soft cap or ALiBi
// slopes; no dropout.
template <int kD, bool kScoreMod>
cudaError_t launch_forward_windowed(DType type, const ForwardProblem& p, int blocks,
                                    cudaStream_t stream);

}  // namespace saturate::kernels::attention
