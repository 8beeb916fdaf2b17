// SPDX-License-Identifier: Apache-2.0
#include "kernels/head_norm/head_norm.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/head_norm/head_norm_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit head_norm_fits_cpu(const Context&, const HeadNormArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit head_norm_fits_cuda(const Context&, const HeadNormArgs& a) noexcept {
  return fits_cuda(a.dtype, a.rows * a.heads);
}
#endif

constexpr Impl<HeadNormArgs> kHeadNorm[] = {
    SAT_CUDA_IMPL({"head_norm_cuda", DeviceKind::cuda, head_norm_fits_cuda, head_norm_cuda}){
        "head_norm_cpu", DeviceKind::cpu, head_norm_fits_cpu, head_norm_cpu}};

}  // namespace

template <>
std::span<const Impl<HeadNormArgs>> impls_of() noexcept {
  return kHeadNorm;
}

void head_norm(const Context& ctx, const HeadNormArgs& a) {
  constexpr const char* kOp = "head_norm";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"heads", a.heads}, {"head_size", a.head_size}});
  const int64_t width = a.heads * a.head_size;
  if (a.rows > 1 && (a.x_stride < width || a.y_stride < width)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("strides are {} and {} for {} heads of {}: rows of {} elements overlap",
                            a.x_stride, a.y_stride, a.heads, a.head_size, width));
  }
  if (a.rows == 0 || width == 0) return;
  require_pointers(kOp, {{"x", a.x}, {"weight", a.weight}, {"y", a.y}});
  dispatch<HeadNormArgs>(kOp, ctx, a, kHeadNorm, [&] {
    return shape_text(a.dtype, {a.rows, a.heads, a.head_size});
  });
}

}  // namespace saturate::kernels
