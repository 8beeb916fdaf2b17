// SPDX-License-Identifier: Apache-2.0
// One product as the tensor-core kernels take it, and the choice of how to run it.
#pragma once
#include "kernels/gemm/matmul.h"

namespace saturate::kernels::mma {

// How the tiles are read: async by cp.async and wide through registers need 16-byte alignment,
// narrow takes any.
enum class Loads : uint8_t { async, wide, narrow };
enum class Size : uint8_t { small, large };  // 64 x 64 or 128 x 128 of the product a block

struct Plan {
  Size size = Size::small;
  Loads loads = Loads::narrow;
  int tiles_m = 0, tiles_n = 0;
  int splits = 1;          // of the depth; more than one goes through ctx.workspace
  int split_depth = 0;     // a multiple of 32
  int64_t partial_ld = 0;  // columns of a split's partial product, a multiple of 16
  size_t workspace_bytes = 0;
};

// `major`: of the compute capability.
Plan plan_for(const MatmulArgs& args, int major, int multiprocessors, size_t workspace_bytes);

template <class T, Transpose kTa, Transpose kTb>
void launch(const Context& ctx, const MatmulArgs& args, const Plan& plan);

// Adds the splits in order and applies the epilogue.
void launch_join(const Context& ctx, const MatmulArgs& args, const Plan& plan);

}  // namespace saturate::kernels::mma
