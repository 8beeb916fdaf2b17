// SPDX-License-Identifier: Apache-2.0
// The implementations of products in the order in which they are tried.
#include <algorithm>

#include "kernels/gemm/bf16/matmul_bf16_cpu.h"
#include "kernels/gemm/few_rows/matmul_few_rows.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/ordered/matmul_ordered_cpu.h"
#include "kernels/gemm/wgmma/matmul_fp16x3.h"
#include "kernels/gemm/wgmma/matmul_tf32.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/gemm/wgmma/matmul_wgmma_activation.h"

namespace saturate::kernels {
namespace {

// One whose launch asks the context for nothing but the `kBytes` of workspace.
template <auto kLaunch, auto kBytes>
PreparedMatmul prepare(const Context& ctx, const MatmulArgs& x) {
  return {kLaunch, kBytes(ctx, x)};
}
[[maybe_unused]] size_t no_workspace(const Context&, const MatmulArgs&) { return 0; }

bool always(const Context&, const MatmulArgs&) noexcept { return true; }

#if SATURATE_WITH_CUDA
size_t fp16x3_workspace(const Context& ctx, const MatmulArgs& x) {
  return std::min(ctx.workspace_bytes, matmul_fp16x3_workspace(x));  // less runs in pieces
}
size_t tf32_workspace(const Context&, const MatmulArgs& x) { return matmul_tf32_workspace(x); }

PreparedMatmul prepare_cublaslt(const Context& ctx, const MatmulArgs& x) {
  return matmul_cublaslt_prepare(ctx, x, "");
}
PreparedMatmul prepare_wgmma(const Context& ctx, const MatmulArgs& x) {
  const WgmmaPlan plan = wgmma_plans(ctx, x).front();
  return {[plan](const Context& c, const MatmulArgs& a) { matmul_wgmma_run(c, a, plan); },
          wgmma_workspace(x, plan)};
}
#endif

// clang-format off
constexpr MatmulImpl kImpls[] = {
    SAT_CUDA_IMPL({"matmul_fp16x3_cuda", DeviceKind::cuda, matmul_fp16x3_cuda_pays, prepare<matmul_fp16x3_cuda, fp16x3_workspace>})
    SAT_CUDA_IMPL({"matmul_few_rows_cuda", DeviceKind::cuda, matmul_few_rows_cuda_pays, prepare<matmul_few_rows_cuda, no_workspace>, matmul_few_rows_epilogue_pays})
    SAT_CUDA_IMPL({"matmul_cublaslt_cuda", DeviceKind::cuda, matmul_cublaslt_cuda_fits, prepare_cublaslt})
    SAT_CUDA_IMPL({"matmul_wgmma_cuda", DeviceKind::cuda, matmul_wgmma_cuda_fits, prepare_wgmma})
    SAT_CUDA_IMPL({"matmul_tf32_cuda", DeviceKind::cuda, matmul_tf32_cuda_fits, prepare<matmul_tf32_cuda, tf32_workspace>})
    SAT_CUDA_IMPL({"matmul_wgmma_activation_cuda", DeviceKind::cuda, matmul_wgmma_activation_cuda_fits, prepare<matmul_wgmma_activation_cuda, no_workspace>, matmul_wgmma_activation_pays})
    SAT_CUDA_IMPL({"matmul_wgmma_derivative_cuda", DeviceKind::cuda, matmul_wgmma_derivative_cuda_fits, prepare<matmul_wgmma_derivative_cuda, matmul_wgmma_derivative_workspace>, matmul_wgmma_derivative_pays})
    SAT_CUDA_IMPL({"matmul_mma_cuda", DeviceKind::cuda, matmul_mma_cuda_fits, prepare<matmul_mma_cuda, matmul_mma_workspace>})
    {"matmul_bf16_cpu", DeviceKind::cpu, matmul_bf16_cpu_fits, prepare<matmul_bf16_cpu, no_workspace>, always},
    {"matmul_ordered_cpu", DeviceKind::cpu, matmul_ordered_cpu_fits, prepare<matmul_ordered_cpu, no_workspace>, always},
    {"matmul_blas_cpu", DeviceKind::cpu, matmul_blas_cpu_fits, prepare<matmul_blas_cpu, no_workspace>, always},
};
// clang-format on

}  // namespace

std::span<const MatmulImpl> matmul_impls() noexcept { return kImpls; }

}  // namespace saturate::kernels
