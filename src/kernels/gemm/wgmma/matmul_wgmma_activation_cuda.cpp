// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/device/fold_columns.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/wgmma_activation.h"
#include "kernels/gemm/wgmma/wgmma_args.h"
#include "kernels/gemm/wgmma/wgmma_slopes.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kM = wgmma::kEpilogueTileM;

constexpr int columns_of(bool ping_pong) noexcept {
  return ping_pong ? wgmma::kTurnTileN : wgmma::kSharedTileN;
}

bool aux_is_aligned(const Epilogue& e) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(e.aux);
  return e.bits ? address % 8 == 0 : address % 16 == 0 && e.ld_aux % 8 == 0;
}

int64_t tiles_of(const MatmulArgs& x, bool ping_pong) noexcept {
  return wgmma::ceil_div(x.m, kM) * wgmma::ceil_div(x.n, columns_of(ping_pong));
}

// Tiles of smaller sizes fill more of the chip.
bool many_tiles(const Context& ctx, const MatmulArgs& x) noexcept {
  return 2 * tiles_of(x, false) >= wgmma::blocks_of(ctx);
}

// With the maps of the operands.
wgmma::Problem problem_of(const MatmulArgs& x, bool ping_pong) {
  const int columns = columns_of(ping_pong);
  wgmma::Problem p = wgmma::problem_of(x, kM, columns, wgmma::kTileK, 1, 8);
  p.a = wgmma::map_of(x.a, x.ab_type, x.m, x.k, x.lda, kM);
  p.b = x.tb == Transpose::yes ? wgmma::map_of(x.b, x.ab_type, x.n, x.k, x.ldb, columns / 2)
                               : wgmma::map_of(x.b, x.ab_type, x.k, x.n, x.ldb, wgmma::kTileK / 2);
  p.c = x.epilogue.aux;
  p.ldc = x.epilogue.ld_aux;
  return p;
}

template <class T>
cudaError_t launch_activation(ActivationKind kind, bool slopes, bool ping_pong,
                              const wgmma::Problem& p, int blocks, cudaStream_t stream) {
  if (slopes)
    return kind == ActivationKind::gelu_tanh
               ? wgmma::launch_activation_and_slopes<T, ActivationKind::gelu_tanh>(p, blocks,
                                                                                   stream)
               : wgmma::launch_activation_and_slopes<T, ActivationKind::gelu_erf>(p, blocks,
                                                                                  stream);
  return ping_pong ? wgmma::launch_activation<T, true>(kind, p, blocks, stream)
                   : wgmma::launch_activation<T, false>(kind, p, blocks, stream);
}

template <class T>
cudaError_t launch_bits(bool by_turns, const wgmma::Problem& p, int blocks, cudaStream_t stream) {
  return by_turns ? wgmma::launch_with_bits<T, true>(p, blocks, stream)
                  : wgmma::launch_with_bits<T, false>(p, blocks, stream);
}

template <class T>
cudaError_t launch_derivative(const MatmulArgs& x, bool by_turns, const wgmma::Problem& p,
                              int blocks, cudaStream_t stream) {
  const Epilogue& e = x.epilogue;
  const ActivationKind kind = e.slopes ? ActivationKind::identity : e.activation;
  const int rows = wgmma::rows_of_consumer(by_turns);
  const wgmma::SlopesProblem with_maps{p, wgmma::map_of(e.aux, x.d_type, x.m, x.n, e.ld_aux, rows),
                                       wgmma::map_of(x.d, x.d_type, x.m, x.n, x.ldd, rows)};
  return by_turns ? wgmma::launch_slopes<T, true>(kind, with_maps, blocks, stream)
                  : wgmma::launch_slopes<T, false>(kind, with_maps, blocks, stream);
}

}  // namespace

bool matmul_wgmma_takes_turns(const Context& ctx, const MatmulArgs& x) noexcept {
  return tiles_of(x, true) >= 4 * wgmma::blocks_of(ctx);
}

Fit matmul_wgmma_activation_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.kind != EpilogueKind::activation || e.column_sum != nullptr)
    return {"has no epilogue but an activation"};
  if (e.activation == ActivationKind::silu) return {"computes relu and gelu only"};
  const bool relu = e.activation == ActivationKind::relu;
  if (e.slopes && (relu || e.aux == nullptr))
    return {"keeps slopes of gelu only, and where aux says"};
  if (relu && (e.aux != nullptr) != e.bits) return {"keeps of relu bits only, and where aux says"};
  if (x.ta == Transpose::yes || x.tb == Transpose::no) return {"multiplies by a transposed B only"};
  if (x.beta != 0.0f) return {"adds no C"};
  if (e.aux != nullptr && !aux_is_aligned(e))
    return {"aux is not aligned to 16 bytes in every row, bits to 8"};
  MatmulArgs plain = x;
  plain.epilogue = {};
  return matmul_wgmma_cuda_fits(ctx, plain);
}

void matmul_wgmma_activation_cuda(const Context& ctx, const MatmulArgs& x) {
  // gelu_erf takes longer than the other consumer's product.
  const bool hidden = x.epilogue.activation != ActivationKind::gelu_erf;
  matmul_wgmma_activation_run(ctx, x, hidden && matmul_wgmma_takes_turns(ctx, x));
}

void matmul_wgmma_activation_run(const Context& ctx, const MatmulArgs& x, bool ping_pong) {
  const Epilogue& e = x.epilogue;
  const wgmma::Problem p = problem_of(x, ping_pong || e.slopes);
  const auto launch =
      x.ab_type == DType::bf16 ? launch_activation<__nv_bfloat16> : launch_activation<__half>;
  SAT_CUDA(launch(e.activation, e.slopes, ping_pong, p, wgmma::blocks_for(ctx, p),
                  cuda::stream_of(ctx)));
}

Fit matmul_wgmma_derivative_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.kind != EpilogueKind::derivative) return {"has no epilogue but a derivative"};
  if (e.activation == ActivationKind::silu) return {"knows the slopes of relu and gelu only"};
  if ((e.activation == ActivationKind::relu) != e.bits) return {"takes of relu bits only"};
  if (x.ta == Transpose::yes || x.tb == Transpose::yes) return {"multiplies by B as it is only"};
  if (x.beta != 0.0f || x.bias != nullptr) return {"adds neither C nor a bias"};
  if (!aux_is_aligned(e)) return {"aux is not aligned to 16 bytes in every row, bits to 8"};
  if (matmul_wgmma_derivative_workspace(ctx, x) > ctx.workspace_bytes)
    return {"the workspace is too small for the column sums of every 64 rows"};
  MatmulArgs plain = x;
  plain.epilogue = {};
  return matmul_wgmma_cuda_fits(ctx, plain);
}

size_t matmul_wgmma_derivative_workspace(const Context&, const MatmulArgs& x) noexcept {
  if (x.epilogue.column_sum == nullptr || x.epilogue.partial != nullptr) return 0;
  return static_cast<size_t>(wgmma::ceil_div(x.m, wgmma::rows_of_consumer(false)) * x.n) *
         sizeof(float);
}

void matmul_wgmma_derivative_cuda(const Context& ctx, const MatmulArgs& x) {
  matmul_wgmma_derivative_run(ctx, x, matmul_wgmma_takes_turns(ctx, x));
}

void matmul_wgmma_derivative_run(const Context& ctx, const MatmulArgs& x, bool ping_pong) {
  const Epilogue& e = x.epilogue;
  // Slopes of gelu from what it was given take longer than the other consumer's product: shared tiles.
  const bool by_turns = e.slopes || (ping_pong && e.bits);
  wgmma::Problem p = problem_of(x, by_turns);
  static_assert(wgmma::rows_of_consumer(false) == Epilogue::kSummedRows);
  float* const partial = e.partial != nullptr ? e.partial : static_cast<float*>(ctx.workspace);
  p.partial = e.column_sum != nullptr ? partial : nullptr;
  const int blocks = wgmma::blocks_for(ctx, p);
  const bool bf16 = x.ab_type == DType::bf16;
  if (e.bits) {
    const auto launch = bf16 ? launch_bits<__nv_bfloat16> : launch_bits<__half>;
    SAT_CUDA(launch(by_turns, p, blocks, cuda::stream_of(ctx)));
  } else {
    const auto launch = bf16 ? launch_derivative<__nv_bfloat16> : launch_derivative<__half>;
    SAT_CUDA(launch(x, by_turns, p, blocks, cuda::stream_of(ctx)));
  }
  if (e.column_sum == nullptr) return;
  fold_columns_cuda(ctx,
                    {.partial = p.partial,
                     .groups = wgmma::ceil_div(x.m, wgmma::rows_of_consumer(by_turns)),
                     .outs = 1,
                     .cols = x.n,
                     .out = {e.column_sum},
                     .accumulate = {e.add_to_column_sum}},
                    e.partial != nullptr ? e.later : nullptr);
}

bool matmul_wgmma_activation_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  const Epilogue& e = x.epilogue;
  if (e.slopes) return matmul_wgmma_takes_turns(ctx, x);
  return many_tiles(ctx, x) && (e.activation == ActivationKind::relu || e.aux == nullptr);
}

bool matmul_wgmma_derivative_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  return x.epilogue.slopes ? matmul_wgmma_takes_turns(ctx, x) : many_tiles(ctx, x);
}

}  // namespace saturate::kernels
