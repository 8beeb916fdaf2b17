// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/fold_columns.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_args.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kM = 128, kN = 256;
constexpr int64_t kSummedRows = 64;  // of which one row of column sums is made

bool aux_is_aligned(const Epilogue& e) noexcept {
  return reinterpret_cast<uintptr_t>(e.aux) % 16 == 0 && e.ld_aux % 8 == 0;
}

// Tiles of smaller sizes fill more of the chip.
bool many_tiles(const Context& ctx, const MatmulArgs& x) noexcept {
  return 2 * wgmma::ceil_div(x.m, kM) * wgmma::ceil_div(x.n, kN) >= wgmma::blocks_of(ctx);
}

}  // namespace

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.kind != EpilogueKind::activation || e.column_sum != nullptr)
    return {"has no epilogue but an activation"};
  if (e.activation == ActivationKind::silu) return {"computes relu and gelu only"};
  if (x.ta == Transpose::yes || x.tb == Transpose::no) return {"multiplies by a transposed B only"};
  if (x.beta != 0.0f) return {"adds no C"};
  if (e.aux != nullptr && !aux_is_aligned(e))
    return {"aux is not aligned to 16 bytes in every row"};
  MatmulArgs plain = x;
  plain.epilogue = {};
  return matmul_wgmma_cuda_fits(ctx, plain);
}

void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& x) {
  wgmma::Problem p = wgmma::problem_of(x, kM, kN, wgmma::kTileK, 1, 8);
  p.a = wgmma::map_of(x.a, x.ab_type, x.m, x.k, x.lda, kM);
  p.b = wgmma::map_of(x.b, x.ab_type, x.n, x.k, x.ldb, kN / 2);
  p.c = x.epilogue.aux;
  p.ldc = x.epilogue.ld_aux;
  const auto launch = x.ab_type == DType::bf16 ? wgmma::launch_activation<__nv_bfloat16>
                                               : wgmma::launch_activation<__half>;
  SAT_CUDA(launch(x.epilogue.activation, p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
}

Fit matmul_wgmma_derivative_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.kind != EpilogueKind::derivative) return {"has no epilogue but a derivative"};
  if (e.activation != ActivationKind::relu && e.activation != ActivationKind::gelu_tanh)
    return {"knows the slopes of relu and gelu_tanh only"};
  if (x.ta == Transpose::yes || x.tb == Transpose::yes) return {"multiplies by B as it is only"};
  if (x.beta != 0.0f || x.bias != nullptr) return {"adds neither C nor a bias"};
  if (!aux_is_aligned(e)) return {"aux is not aligned to 16 bytes in every row"};
  if (matmul_wgmma_derivative_workspace(ctx, x) > ctx.workspace_bytes)
    return {"the workspace is too small for the column sums of every 64 rows"};
  MatmulArgs plain = x;
  plain.epilogue = {};
  return matmul_wgmma_cuda_fits(ctx, plain);
}

size_t matmul_wgmma_derivative_workspace(const Context&, const MatmulArgs& x) noexcept {
  if (x.epilogue.column_sum == nullptr) return 0;
  return static_cast<size_t>(wgmma::ceil_div(x.m, kSummedRows) * x.n) * sizeof(float);
}

void matmul_wgmma_derivative_cuda(const Context& ctx, const MatmulArgs& x) {
  const Epilogue& e = x.epilogue;
  wgmma::Problem p = wgmma::problem_of(x, kM, kN, wgmma::kTileK, 1, 8);
  p.a = wgmma::map_of(x.a, x.ab_type, x.m, x.k, x.lda, kM);
  p.b = wgmma::map_of(x.b, x.ab_type, x.k, x.n, x.ldb, wgmma::kTileK / 2);
  p.c = e.aux;
  p.ldc = e.ld_aux;
  p.partial = e.column_sum != nullptr ? static_cast<float*>(ctx.workspace) : nullptr;
  const auto launch = x.ab_type == DType::bf16 ? wgmma::launch_derivative<__nv_bfloat16>
                                               : wgmma::launch_derivative<__half>;
  SAT_CUDA(launch(e.activation, p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
  if (e.column_sum == nullptr) return;
  fold_columns_cuda(ctx, {.partial = p.partial,
                          .groups = wgmma::ceil_div(x.m, kSummedRows),
                          .outs = 1,
                          .cols = x.n,
                          .out = {e.column_sum},
                          .accumulate = {e.add_to_column_sum}});
}

bool matmul_wgmma_activation_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  return many_tiles(ctx, x) &&
         (x.epilogue.activation == ActivationKind::relu || x.epilogue.aux == nullptr);
}

bool matmul_wgmma_derivative_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  return many_tiles(ctx, x);
}

}  // namespace saturate::kernels
