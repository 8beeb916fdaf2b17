// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/wgmma/matmul_group.h"

#include <fmt/format.h>

#include "base/features.h"

#if SATURATE_WITH_CUDA
#include "kernels/gemm/wgmma/matmul_wgmma.h"
#include "kernels/hopper/tensor_map.h"
#endif

namespace saturate::kernels {

Fit matmul_group_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ta != Transpose::yes || x.tb != Transpose::no)
    return {"groups are of weight gradients: A transposed, B as it is"};
  if (x.bias != nullptr) return {"products in a group have no bias"};
  if (!ctx.device.is_cuda()) return {"groups run on GPUs"};
#if SATURATE_WITH_CUDA
  return matmul_wgmma_cuda_fits(ctx, x);
#else
  return {};  // there is no such context
#endif
}

int64_t matmul_group_places([[maybe_unused]] const Context& ctx) noexcept {
#if SATURATE_WITH_CUDA
  if (ctx.device.is_cuda() && wgmma::device_fits(ctx)) return wgmma::blocks_of(ctx) / 2;
#endif
  return 0;
}

void matmul_group([[maybe_unused]] const Context& ctx, std::span<const MatmulArgs> products) {
  constexpr const char* kOp = "matmul_group";
  if (products.size() > static_cast<size_t>(kMostInMatmulGroup))
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("{} products; {} are the most", products.size(), kMostInMatmulGroup));
  for (const MatmulArgs& x : products) {
    if (x.ab_type != products.front().ab_type)
      throw Error(Errc::invalid_argument, kOp,
                  fmt::format("products of {} and of {} in one group",
                              name_of(products.front().ab_type), name_of(x.ab_type)));
    MatmulArgs product = x;
    product.epilogue.column_sum = nullptr;
    product.epilogue.add_to_column_sum = false;
    if (const Fit fit = matmul_group_fits(ctx, product); !fit)
      throw Error(Errc::unsupported, kOp,
                  fmt::format("({}, {}, {}): {}", x.m, x.n, x.k, fit.reason));
  }
#if SATURATE_WITH_CUDA
  if (!products.empty()) matmul_group_cuda(ctx, products);
#endif
}

}  // namespace saturate::kernels
