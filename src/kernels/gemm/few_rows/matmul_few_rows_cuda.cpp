// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/few_rows/matmul_few_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace few_rows {

Plan plan_for(const MatmulArgs& x, int multiprocessors) {
  Plan p;
  while (8 * p.rows8 < x.m) p.rows8 *= 2;
  // As wide a block as leaves no multiprocessor without one; then all that k allows.
  const auto fills = [&](int columns) { return x.n >= int64_t{columns} * multiprocessors; };
  while (p.warps_k > 2 && fills(2 * columns_of_block(p))) p.warps_k /= 2;
  while (p.columns8 < (p.rows8 == 8 ? 2 : 4) && fills(2 * columns_of_block(p))) p.columns8 *= 2;
  return p;
}

}  // namespace few_rows

Fit matmul_few_rows_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  const bool f16 = x.ab_type == DType::f16;
  if (!f16 && x.ab_type != DType::bf16) return {"a and b are neither bf16 nor f16"};
  if (x.m > few_rows::kMostRows) return {"more than 64 rows"};
  if (x.ta == Transpose::yes || x.tb == Transpose::no) return {"only A B^T is built"};
  if (x.batch != 1) return {"one product at a time"};
  const EpilogueKind kind = x.epilogue.kind;
  if ((kind != EpilogueKind::plain && kind != EpilogueKind::activation) ||
      x.epilogue.column_sum != nullptr)
    return {"no epilogue but bias, residual and activation"};
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(x.a) || !aligned(x.b) || x.lda % 8 != 0 || x.ldb % 8 != 0 || x.k % 8 != 0)
    return {"A or B is not aligned to 16 bytes in every row"};
  if (x.k == 0) return {"nothing to multiply (k = 0)"};
  if (std::max(x.n, x.k) >= int64_t{1} << 30) return {"a size exceeds 2^30"};
  const Capability& gpu = capability_of(ctx);
  if (gpu.major < 8 && !(f16 && gpu.major == 7 && gpu.minor >= 5))
    return {"the GPU is older than compute capability 8.0 (7.5 for f16)"};
  return {};
}

Fit matmul_few_rows_cuda_pays(const Context& ctx, const MatmulArgs& x) noexcept {
  if (const Fit fit = matmul_few_rows_cuda_fits(ctx, x); !fit) return fit;
  constexpr int64_t kManyWeights = int64_t{1} << 22;  // of one product, measured: LADDER.md
  if (x.m > (x.n * x.k > kManyWeights ? 8 : 16)) return {"others are faster with so many rows"};
  return {};
}

bool matmul_few_rows_epilogue_pays(const Context&, const MatmulArgs&) noexcept { return true; }

void matmul_few_rows_run(const Context& ctx, const MatmulArgs& x, const few_rows::Plan& plan) {
  const bool early = capability_of(ctx).major >= 9;
  const auto launch =
      x.ab_type == DType::bf16 ? few_rows::launch<__nv_bfloat16> : few_rows::launch<__half>;
  SAT_CUDA(launch(x, plan, early, cuda::stream_of(ctx)));
}

void matmul_few_rows_cuda(const Context& ctx, const MatmulArgs& x) {
  matmul_few_rows_run(ctx, x, few_rows::plan_for(x, capability_of(ctx).multiprocessors));
}

}  // namespace saturate::kernels
