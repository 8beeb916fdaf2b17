// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <algorithm>

#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_host.h"
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
  wgmma::Problem p{};
  p.a = wgmma::map_of(x.a, x.ab_type, x.m, x.k, x.lda, kM);
  p.b = wgmma::map_of(x.b, x.ab_type, x.n, x.k, x.ldb, kN / 2);
  p.out = x.d;
  p.c = x.epilogue.aux;
  p.bias = x.bias;
  p.ldc = x.epilogue.ld_aux;
  p.ldd = x.ldd;
  p.alpha = x.alpha;
  p.m = static_cast<int>(x.m);
  p.n = static_cast<int>(x.n);
  p.k_blocks = p.split_blocks = static_cast<int>(wgmma::ceil_div(x.k, 64));
  p.pairs_m = static_cast<int>(wgmma::ceil_div(x.m, 2 * kM));
  p.tiles_n = static_cast<int>(wgmma::ceil_div(x.n, kN));
  p.units = p.pairs_m * p.tiles_n;
  p.band = std::min(8, p.pairs_m);
  const int blocks = std::min(wgmma::blocks_of(ctx), 2 * p.units);
  const auto launch =
      x.ab_type == DType::bf16 ? wgmma::launch_activation_bf16 : wgmma::launch_activation_f16;
  SAT_CUDA(launch(x.epilogue.activation, p, blocks, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
