// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/gemm/grouped/grouped_wgmma.h"
#include "kernels/hopper/tensor_map.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

using wgmma::ceil_div;

// Upper bound of the units that the blocks will count: every group may end in a broken tile.
int64_t most_units(const GroupedGemmArgs& x) {
  const int64_t pair = 2 * wgmma::kGroupedTileM;
  if (x.form == GroupedForm::weight_gradient)
    return x.groups * ceil_div(x.n, pair) * ceil_div(x.k, wgmma::kGroupedWeightTileN);
  const int64_t columns = x.form == GroupedForm::forward ? x.n : x.k;
  return (x.rows / pair + std::min(x.groups, x.rows)) * ceil_div(columns, wgmma::kGroupedTileN);
}

template <class T>
cudaError_t launch_any_form(GroupedForm form, const wgmma::GroupedProblem& p, int blocks,
                            cudaStream_t stream) {
  using F = GroupedForm;
  const auto launch = form == F::forward          ? wgmma::launch_grouped<T, F::forward>
                      : form == F::input_gradient ? wgmma::launch_grouped<T, F::input_gradient>
                                                  : wgmma::launch_grouped<T, F::weight_gradient>;
  return launch(p, blocks, stream);
}

}  // namespace

Fit grouped_gemm_wgmma_cuda_fits(const Context& ctx, const GroupedGemmArgs& x) noexcept {
  if (x.dtype != DType::bf16 && x.dtype != DType::f16) return {"multiplies bf16 and f16 only"};
  if (x.n % 8 != 0 || x.k % 8 != 0) return {"n or k is not a multiple of 8"};
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(x.a) || !aligned(x.b) || !aligned(x.d))
    return {"a, b or d is not aligned to 16 bytes"};
  if (x.beta != 0.0f && x.beta != 1.0f) return {"beta is neither 0 nor 1"};
  if (x.groups > wgmma::kMostGroups) return {"more than 1024 groups"};
  if (x.rows == 0) return {"no rows"};
  if (std::max({x.rows, x.n, x.k}) >= int64_t{1} << 30) return {"a size exceeds 2^30"};
  if (most_units(x) >= int64_t{1} << 31) return {"2^31 or more tiles"};
  return wgmma::device_fits(ctx);
}

void grouped_gemm_wgmma_cuda(const Context& ctx, const GroupedGemmArgs& x) {
  const bool forward = x.form == GroupedForm::forward;
  const bool weights = x.form == GroupedForm::weight_gradient;
  wgmma::GroupedProblem p{};
  p.a = wgmma::map_of(x.a, x.dtype, x.rows, forward ? x.k : x.n, forward ? x.k : x.n, 64);
  p.b = weights ? wgmma::map_of(x.b, x.dtype, x.rows, x.k, x.k, 32)
                : wgmma::map_of_stack(x.b, x.dtype, x.groups, x.n, x.k,
                                      forward ? wgmma::kGroupedTileN / 2 : 32);
  if (weights) p.d = wgmma::map_of_stack(x.d, DType::f32, x.groups, x.n, x.k, wgmma::kSlabRows);
  p.out = x.d;
  p.offsets = x.offsets;
  p.beta = x.beta;
  p.groups = static_cast<int>(x.groups);
  p.rows = static_cast<int>(x.rows);
  p.m = static_cast<int>(x.n);
  p.n = static_cast<int>(forward ? x.n : x.k);
  p.ldd = p.n;
  p.k_blocks = static_cast<int>(ceil_div(forward ? x.k : x.n, 64));
  p.band = 8;
  const auto launch =
      x.dtype == DType::bf16 ? launch_any_form<__nv_bfloat16> : launch_any_form<__half>;
  const auto blocks = std::min<int64_t>(wgmma::blocks_of(ctx), 2 * most_units(x));
  SAT_CUDA(launch(x.form, p, static_cast<int>(blocks), cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
