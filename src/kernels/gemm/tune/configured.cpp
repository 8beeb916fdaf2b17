// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/configured.h"

#include "kernels/gemm/sgemm/sgemm.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/wgmma/matmul_tf32.h"
#include "kernels/gemm/wgmma/matmul_wgmma.h"

namespace saturate::kernels {

#if SATURATE_WITH_CUDA
namespace {

constexpr const char* kOnly = "auto";  // an implementation that chooses for itself

std::vector<std::string> wgmma_configurations(const Context& c, const MatmulArgs& x,
                                              Search search) {
  std::vector<std::string> names;
  for (const WgmmaPlan& plan : wgmma_plans(c, x)) {
    if (search == Search::exhaustive || names.size() < 12) names.push_back(name_of(plan));
  }
  return names;
}

constexpr ConfiguredImpl kConfigured[] = {
    {"matmul_cublaslt_cuda", matmul_cublaslt_cuda_fits,
     [](const Context& c, const MatmulArgs& x, Search search) {
       return matmul_cublaslt_configurations(c, x, search == Search::exhaustive ? 64 : 8);
     },
     nullptr, matmul_cublaslt_ready, matmul_cublaslt_prepare, nullptr},
    {"matmul_wgmma_cuda", matmul_wgmma_cuda_fits, wgmma_configurations, nullptr,
     [](const Context& c, const MatmulArgs& x, const std::string& name) {
       return wgmma_plan_fits(c, x, wgmma_plan_named(name));
     },
     [](const Context&, const MatmulArgs& x, const std::string& name) -> PreparedMatmul {
       const WgmmaPlan plan = wgmma_plan_named(name);
       return {[plan](const Context& c, const MatmulArgs& a) { matmul_wgmma_run(c, a, plan); },
               wgmma_workspace(x, plan)};
     },
     [](const Context& c, const MatmulArgs& x, const std::string& name) {
       return wgmma_predicted_ms(c, x, wgmma_plan_named(name));
     }},
    {"sgemm_tiled_nvrtc", sgemm_jit_fits, sgemm_jit_configurations, sgemm_jit_prepare,
     sgemm_jit_ready,
     [](const Context&, const MatmulArgs&, const std::string& config) -> PreparedMatmul {
       return {[config](const Context& c, const MatmulArgs& a) { sgemm_jit_run(c, a, config); }, 0};
     },
     sgemm_jit_predict},
    {"sgemm_tma_cuda", sgemm_tma_cuda_fits,
     [](const Context&, const MatmulArgs&, Search) { return std::vector<std::string>{kOnly}; },
     nullptr, [](const Context&, const MatmulArgs&, const std::string&) { return Fit{}; },
     [](const Context&, const MatmulArgs&, const std::string&) {
       return PreparedMatmul{sgemm_tma_cuda, 0};
     },
     nullptr},
    {"matmul_tf32_cuda", matmul_tf32_cuda_fits,
     [](const Context&, const MatmulArgs&, Search) { return std::vector<std::string>{kOnly}; },
     nullptr, [](const Context&, const MatmulArgs&, const std::string&) { return Fit{}; },
     [](const Context&, const MatmulArgs& x, const std::string&) {
       return PreparedMatmul{matmul_tf32_cuda, matmul_tf32_workspace(x)};
     },
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
