// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/few_rows/matmul_few_rows.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace few_rows {

namespace {

// As measured (LADDER.md): with more rows A is worth reading for more columns.
int columns8_of(const MatmulArgs& x, int rows8) {
  if (rows8 == 1) return x.n >= 768 && x.n <= 4096 && x.k <= 1024 ? 2 : 1;
  if (rows8 == 4 && x.n >= 8192) return 4;
  return rows8 == 8 || x.n >= 768 || (rows8 == 4 && x.k >= 2048) ? 2 : 1;
}

}  // namespace

Plan plan_for(const MatmulArgs& x, int multiprocessors) {
  Plan p;
  while (8 * p.rows8 < x.m) p.rows8 *= 2;
  p.columns8 = columns8_of(x, p.rows8);
  if (p.rows8 == 1 && x.k <= 512) p.warps_k = 4;
  // As wide a block as leaves no multiprocessor without one.
  while (p.warps_k > 1 && x.n >= int64_t{2} * columns_of_block(p) * multiprocessors) p.warps_k /= 2;
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
      x.epilogue.column_sum != nullptr || x.epilogue.bits)
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
  constexpr int64_t kFewWeights = int64_t{1} << 20, kManyWeights = int64_t{1} << 22;  // LADDER.md
  const int64_t weights = x.n * x.k;
  const int64_t most = weights <= kFewWeights ? 32 : weights <= kManyWeights ? 16 : 8;
  if (x.m > most) return {"others are faster with so many rows"};
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
