// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/configured.h"

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/sgemm/sgemm.h"
#include "kernels/gemm/tune/sgemm_jit.h"

namespace saturate::kernels {

#if SATURATE_WITH_CUDA
namespace {

constexpr const char* kOnly = "auto";  // an implementation that chooses for itself

constexpr ConfiguredImpl kConfigured[] = {
    {"matmul_cublaslt_cuda", matmul_cublaslt_cuda_fits,
     [](const Context& c, const MatmulArgs& x, Search search) {
       return matmul_cublaslt_configurations(c, x, search == Search::exhaustive ? 64 : 8);
     },
     nullptr, matmul_cublaslt_ready, matmul_cublaslt_configured, nullptr},
    {"sgemm_tiled_nvrtc", sgemm_jit_fits, sgemm_jit_configurations, sgemm_jit_prepare,
     sgemm_jit_ready, sgemm_jit_run, sgemm_jit_predict},
    {"sgemm_tma_cuda", sgemm_tma_cuda_fits,
     [](const Context&, const MatmulArgs&, Search) { return std::vector<std::string>{kOnly}; },
     nullptr, [](const Context&, const MatmulArgs&, const std::string&) { return Fit{}; },
     [](const Context& c, const MatmulArgs& x, const std::string&) { sgemm_tma_cuda(c, x); },
     nullptr},
};
}  // namespace

std::span<const ConfiguredImpl> configured_impls() noexcept { return kConfigured; }
#else
std::span<const ConfiguredImpl> configured_impls() noexcept { return {}; }
#endif

const ConfiguredImpl* find_configured(std::string_view name) noexcept {
  for (const ConfiguredImpl& impl : configured_impls()) {
    if (name == impl.name) return &impl;
  }
  return nullptr;
}

}  // namespace saturate::kernels
