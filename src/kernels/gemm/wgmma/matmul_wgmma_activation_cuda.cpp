// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_args.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.kind != EpilogueKind::activation || e.column_sum != nullptr)
    return {"has no epilogue but an activation"};
  if (e.activation == ActivationKind::silu) return {"computes relu and gelu only"};
  if (x.ta == Transpose::yes || x.tb == Transpose::no) return {"multiplies by a transposed B only"};
  if (x.beta != 0.0f) return {"adds no C"};
  if (e.aux != nullptr && (reinterpret_cast<uintptr_t>(e.aux) % 16 != 0 || e.ld_aux % 8 != 0))
    return {"aux is not aligned to 16 bytes in every row"};
  MatmulArgs plain = x;
  plain.epilogue = {};
  return matmul_wgmma_cuda_fits(ctx, plain);
}

void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& x) {
  constexpr int kM = 128, kN = 256;
  wgmma::Problem p = wgmma::problem_of(x, kM, kN, wgmma::kTileK, 1, 8);
  p.a = wgmma::map_of(x.a, x.ab_type, x.m, x.k, x.lda, kM);
  p.b = wgmma::map_of(x.b, x.ab_type, x.n, x.k, x.ldb, kN / 2);
  p.c = x.epilogue.aux;
  p.ldc = x.epilogue.ld_aux;
  const auto launch = x.ab_type == DType::bf16 ? wgmma::launch_activation<__nv_bfloat16>
                                               : wgmma::launch_activation<__half>;
  SAT_CUDA(launch(x.epilogue.activation, p, wgmma::blocks_for(ctx, p), cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
