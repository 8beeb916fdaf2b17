// SPDX-License-Identifier: Apache-2.0
// The ladder: fp32 matrix products without tensor cores, from three lines to the limit of the chip.
// Each rung is one file whose opening comment says what it adds; LADDER.md has what was measured.
//
// D = alpha A B + beta C, row-major, any m, n, k and leading dimensions. beta == 0 never reads C.
// Bitwise equal run to run: every sum has one fixed order.
#pragma once
#include <span>

#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

struct SgemmRung {
  const char* name;
  const char* file;
  double predicted_tflops;  // on one H200 at 4096 cubed; where from: the file's comment
  Fit (*fits)(const Context&, const MatmulArgs&) noexcept;
  void (*launch)(const Context&, const MatmulArgs&);
};

// In the order in which to read them. Empty in a build without CUDA.
std::span<const SgemmRung> sgemm_rungs() noexcept;

// GFLOP/s of all fp32 lanes of the device at its highest clock.
double sgemm_peak_cuda(const Context& ctx);

// f32 in and out, neither operand transposed, no bias: what every rung but the last can do.
Fit sgemm_plain_fits(const Context& ctx, const MatmulArgs& args) noexcept;

// All take problems that matmul() would accept and their fits function accepted, with m, n > 0.
void sgemm_naive_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_coalesced_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_shared_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_column_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_patch_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_vectorised_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_warptile_cuda(const Context& ctx, const MatmulArgs& args);
void sgemm_tiled_cuda(const Context& ctx, const MatmulArgs& args);

// The top rung (sgemm_tma.cuh): also transposed operands and a bias; Hopper only.
Fit sgemm_tma_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
void sgemm_tma_cuda(const Context& ctx, const MatmulArgs& args);

}  // namespace saturate::kernels
