// SPDX-License-Identifier: Apache-2.0
// What a launch of the Hopper kernels for tf32 and fp8 gets (promoted_kernel.cuh).
#pragma once
#include "base/dtype.h"
#include "kernels/gemm/wgmma/wgmma_problem.h"

namespace saturate::kernels::wgmma {

// k_blocks and split_blocks count stages of the pipeline, 128 bytes of k each; one split.
struct PromotedProblem : Problem {
  const float* scale_a = nullptr;  // on the device; null is 1
  const float* scale_b = nullptr;
  float* amax = nullptr;  // null: not wanted
};
constexpr int kPromotedM = 128, kPromotedN = 256;  // of a tile; blocks work in pairs
constexpr int kStageRowBytes = 128;

// A, B: fp32 of which 10 bits of mantissa count. D, C, bias f32.
cudaError_t launch_tf32(const PromotedProblem& p, int blocks, cudaStream_t stream);

// to (columns, rows) with `ld_to` = from (rows, columns)^T.
void transpose_f32(const float* from, int64_t ld, int64_t rows, int64_t columns, float* to,
                   int64_t ld_to, cudaStream_t stream);

// A, B: fp8, e5m2 or else e4m3. D of bf16, f16 or f32; no C, no bias.
cudaError_t launch_fp8(bool e5m2_a, bool e5m2_b, DType d_type, const PromotedProblem& p, int blocks,
                       cudaStream_t stream);

}  // namespace saturate::kernels::wgmma
