// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/grouped/grouped_gemm.h"

#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/host/validate.h"

namespace saturate::kernels {
namespace {

// clang-format off
constexpr Impl<GroupedGemmArgs> kImpls[] = {
    SAT_CUDA_IMPL({"grouped_gemm_wgmma_cuda", DeviceKind::cuda, grouped_gemm_wgmma_cuda_fits, grouped_gemm_wgmma_cuda})
    SAT_CUDA_IMPL({"grouped_gemm_plain_cuda", DeviceKind::cuda, grouped_gemm_plain_cuda_fits, grouped_gemm_plain_cuda})
    {"grouped_gemm_cpu", DeviceKind::cpu, grouped_gemm_cpu_fits, grouped_gemm_cpu},
};
// clang-format on

constexpr const char* kOp = "grouped_gemm";

}  // namespace

std::span<const Impl<GroupedGemmArgs>> grouped_gemm_impls() { return kImpls; }

void grouped_gemm(const Context& ctx, const GroupedGemmArgs& x) {
  require_sizes(kOp, {{"groups", x.groups}, {"rows", x.rows}, {"n", x.n}, {"k", x.k}});
  require_float(kOp, x.dtype);
  const bool weights = x.form == GroupedForm::weight_gradient;
  if (x.groups == 0 ||
      (weights ? x.n * x.k : x.rows * (x.form == GroupedForm::forward ? x.n : x.k)) == 0)
    return;
  if (x.n == 0 || x.k == 0) {
    throw Error(Errc::invalid_argument, kOp,
                "n and k must be positive where rows are: a sum of nothing");
  }
  require_pointers(kOp, {{"offsets", x.offsets}, {"d", x.d}});
  if (x.rows > 0) require_pointers(kOp, {{"a", x.a}, {"b", x.b}});
  dispatch(kOp, ctx, x, grouped_gemm_impls());
}

}  // namespace saturate::kernels
