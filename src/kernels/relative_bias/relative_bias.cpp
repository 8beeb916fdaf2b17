// SPDX-License-Identifier: Apache-2.0
#include "kernels/relative_bias/relative_bias.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/relative_bias/relative_bias_impl.h"

namespace saturate::kernels {
namespace {

Fit relative_bias_fits_cpu(const Context&, const RelativeBiasArgs& a) noexcept {
  return fits_cpu(a.dtype);
}
#if SATURATE_WITH_CUDA
Fit relative_bias_fits_cuda(const Context&, const RelativeBiasArgs& a) noexcept {
  if (a.dtype != wide_of(a.dtype)) return {"the bias is added to scores, which are f32"};
  return fits_cuda(a.dtype, a.heads * a.queries * a.keys);
}
#endif

constexpr Impl<RelativeBiasArgs> kRelativeBias[] = {SAT_CUDA_IMPL(
    {"relative_bias_cuda", DeviceKind::cuda, relative_bias_fits_cuda, relative_bias_cuda}){
    "relative_bias_cpu", DeviceKind::cpu, relative_bias_fits_cpu, relative_bias_cpu}};

}  // namespace

template <>
std::span<const Impl<RelativeBiasArgs>> impls_of() noexcept {
  return kRelativeBias;
}

void relative_bias(const Context& ctx, const RelativeBiasArgs& a) {
  constexpr const char* kOp = "relative_bias";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"heads", a.heads}, {"queries", a.queries}, {"keys", a.keys}});
  if (a.sign != 1 && a.sign != -1) {
    throw Error(Errc::invalid_argument, kOp, fmt::format("sign is {}; pass 1 or -1", a.sign));
  }
  if (a.heads * a.queries * a.keys == 0) return;
  require_pointers(kOp, {{"table", a.table}, {"buckets", a.buckets}, {"bias", a.bias}});
  dispatch<RelativeBiasArgs>(kOp, ctx, a, kRelativeBias, [&] {
    return shape_text(a.dtype, {a.heads, a.queries, a.keys});
  });
}

}  // namespace saturate::kernels
