// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/promoted_host.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/gemm/wgmma/wgmma_host.h"

namespace saturate::kernels::wgmma {
namespace {

CUtensorMap map_of(const Operand& x, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(x.k), static_cast<cuuint64_t>(x.rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(x.ld * x.type_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(kStageRowBytes / x.type_bytes),
                             static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t step[2] = {1, 1};
  const CUresult code =
      encoder()(&map, x.type, 2, const_cast<void*>(x.data), sizes, strides, box, step,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw Error(Errc::device, "matmul",
                fmt::format("the driver refused a tensor map of ({}, {}) with leading dimension "
                            "{}: code {}",
                            x.rows, x.k, x.ld, static_cast<int>(code)));
  }
  return map;
}

}  // namespace

PromotedProblem promoted_problem(const Operand& a, const Operand& b) {
  PromotedProblem p{};
  p.a = map_of(a, kPromotedM);
  p.b = map_of(b, kPromotedN / 2);
  p.alpha = 1.0f;
  p.m = static_cast<int>(a.rows);
  p.n = static_cast<int>(b.rows);
  p.k_blocks = static_cast<int>(ceil_div(a.k * a.type_bytes, kStageRowBytes));
  p.split_blocks = p.k_blocks;
  p.pairs_m = static_cast<int>(ceil_div(a.rows, 2 * kPromotedM));
  p.tiles_n = static_cast<int>(ceil_div(b.rows, kPromotedN));
  p.units = p.pairs_m * p.tiles_n;
  p.band = std::min(8, p.pairs_m);
  return p;
}

int promoted_blocks(const Context& ctx, const PromotedProblem& p) {
  return std::min(blocks_of(ctx), 2 * p.units);
}

}  // namespace saturate::kernels::wgmma
