// SPDX-License-Identifier: Apache-2.0
// When the tensor-core kernels of this folder fit, and with which tiles they run.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/mma/mma_gemm.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace mma {
namespace {

constexpr int64_t kDepth = 32;        // of one step (mma_gemm.cuh)
constexpr int64_t kLeastSplit = 256;  // a split below eight steps does not pay for its partial sums

bool wide_operand(const void* data, int64_t ld, int64_t batch, int64_t stride) noexcept {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && ld % 8 == 0 &&
         (batch == 1 || stride % 8 == 0);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

Plan plan_for(const MatmulArgs& x, int major, int multiprocessors, size_t workspace_bytes) {
  Plan p;
  const bool gated = x.epilogue.kind == EpilogueKind::gated;
  // Eight columns of the up half must start at a multiple of eight as well.
  const bool wide = wide_operand(x.a, x.lda, x.batch, x.stride_a) &&
                    wide_operand(x.b, x.ldb, x.batch, x.stride_b) &&
                    !(gated && x.tb == Transpose::no && x.n % 8 != 0);
  p.loads = !wide ? Loads::narrow : (major >= 8 ? Loads::async : Loads::wide);
  // A gated product in pairs of eight columns (epilogue.cuh).
  const int64_t columns = gated ? ceil_div(x.n, 8) * 16 : x.n;
  const int64_t large = ceil_div(x.m, 128) * ceil_div(columns, 128) * x.batch;
  p.size = p.loads != Loads::narrow && large >= multiprocessors ? Size::large : Size::small;
  const int64_t edge = p.size == Size::large ? 128 : 64;
  p.tiles_m = static_cast<int>(ceil_div(x.m, edge));
  p.tiles_n = static_cast<int>(ceil_div(columns, edge));
  p.split_depth = static_cast<int>(ceil_div(std::max<int64_t>(x.k, 1), kDepth) * kDepth);
  if (x.epilogue.column_sum != nullptr) {
    p.workspace_bytes = static_cast<size_t>(p.tiles_m) *
                        static_cast<size_t>(x.epilogue.output_columns(x.n)) * sizeof(float);
    return p;
  }
  // Two small blocks a multiprocessor, as far as depth and workspace allow.
  const int64_t tiles = static_cast<int64_t>(p.tiles_m) * p.tiles_n;
  p.partial_ld = ceil_div(columns, 16) * 16;
  const int64_t bytes = x.m * p.partial_ld * static_cast<int64_t>(sizeof(float));
  const int64_t splits = std::min({2 * multiprocessors / tiles, x.k / kLeastSplit,
                                   static_cast<int64_t>(workspace_bytes) / bytes, int64_t{64}});
  if (x.batch > 1 || p.size == Size::large || splits < 2) return p;
  p.split_depth = static_cast<int>(ceil_div(ceil_div(x.k, splits), kDepth) * kDepth);
  p.splits = static_cast<int>(ceil_div(x.k, p.split_depth));
  // Of the splits asked for, which may be more than there are: with so much the same plan comes out.
  p.workspace_bytes = static_cast<size_t>(bytes * splits);
  return p;
}

namespace {

struct Chip {
  int major = 0, minor = 0, multiprocessors = 1;
};
Chip chip_of(const Context& ctx) noexcept {
  const Capability& gpu = capability_of(ctx);
  return {gpu.major, gpu.minor, std::max(1, gpu.multiprocessors)};
}

template <class T>
void launch_layout(const Context& ctx, const MatmulArgs& x, const Plan& p) {
  constexpr Transpose n = Transpose::no, t = Transpose::yes;
  if (x.ta == n) return x.tb == n ? launch<T, n, n>(ctx, x, p) : launch<T, n, t>(ctx, x, p);
  return x.tb == n ? launch<T, t, n>(ctx, x, p) : launch<T, t, t>(ctx, x, p);
}

}  // namespace
}  // namespace mma

Fit matmul_mma_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::bf16 && x.ab_type != DType::f16)
    return {"a and b are neither bf16 nor f16 (tensor-core operands)"};
  const mma::Chip chip = mma::chip_of(ctx);
  if (chip.major < 8 && x.ab_type == DType::bf16) return {"bf16 needs compute capability 8.0"};
  if (chip.major < 7 || (chip.major == 7 && chip.minor < 5))
    return {"the GPU is older than compute capability 7.5"};
  constexpr int64_t kLargest = std::numeric_limits<int32_t>::max() / 4;
  if (x.m > kLargest || x.n > kLargest || x.k > kLargest)
    return {"a size is above 2^29 (32-bit positions)"};
  if (((x.m + 63) / 64) * ((x.n + 31) / 32) > std::numeric_limits<int32_t>::max())
    return {"more than 2^31 tiles (grid size)"};
  if (x.batch > 65535) return {"more than 65535 products (third grid dimension)"};
  if (x.epilogue.bits) return {"keeps no bits of relu"};
  if (x.epilogue.column_sum != nullptr &&
      mma::plan_for(x, chip.major, chip.multiprocessors, ctx.workspace_bytes).workspace_bytes >
          ctx.workspace_bytes)
    return {"the workspace is too small for the column sums of all rows of tiles"};
  return {};
}

size_t matmul_mma_workspace(const Context& ctx, const MatmulArgs& x) noexcept {
  const mma::Chip chip = mma::chip_of(ctx);
  return mma::plan_for(x, chip.major, chip.multiprocessors, ctx.workspace_bytes).workspace_bytes;
}

void matmul_mma_cuda(const Context& ctx, const MatmulArgs& x) {
  const mma::Chip chip = mma::chip_of(ctx);
  const mma::Plan plan = mma::plan_for(x, chip.major, chip.multiprocessors, ctx.workspace_bytes);
  x.ab_type == DType::f16 ? mma::launch_layout<__half>(ctx, x, plan)
                          : mma::launch_layout<__nv_bfloat16>(ctx, x, plan);
  if (plan.splits > 1) mma::launch_join(ctx, x, plan);
}

}  // namespace saturate::kernels
