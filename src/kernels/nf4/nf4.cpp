// SPDX-License-Identifier: Apache-2.0
#include "kernels/nf4/nf4.h"

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/nf4/nf4_impl.h"

namespace saturate::kernels {
namespace {

Fit nf4_fits_cpu(const Context&, const Nf4Args& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit nf4_fits_cuda(const Context&, const Nf4Args& a) noexcept { return fits_cuda(a.dtype, a.count); }
#endif

constexpr Impl<Nf4Args> kNf4[] = {
    SAT_CUDA_IMPL({"nf4_dequantize_cuda", DeviceKind::cuda, nf4_fits_cuda, nf4_dequantize_cuda}){
        "nf4_dequantize_cpu", DeviceKind::cpu, nf4_fits_cpu, nf4_dequantize_cpu}};

}  // namespace

template <>
std::span<const Impl<Nf4Args>> impls_of() noexcept {
  return kNf4;
}

const Nf4ScaleTable& nf4_scale_table() {
  static const Nf4ScaleTable table = [] {
    Nf4ScaleTable t;
    for (int i = 0; i < SignedMap::kValues; ++i) t.values[i] = SignedMap::value(i);
    return t;
  }();
  return table;
}

void nf4_dequantize(const Context& ctx, const Nf4Args& a) {
  constexpr const char* kOp = "nf4_dequantize";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"count", a.count}});
  if (a.count == 0) return;
  require_pointers(kOp, {{"held", a.held}, {"w", a.w}});
  dispatch<Nf4Args>(kOp, ctx, a, kNf4, [&] { return shape_text(a.dtype, {a.count}); });
}

}  // namespace saturate::kernels
