// SPDX-License-Identifier: Apache-2.0
#include "kernels/rotary/rotary.h"

#include <fmt/format.h>

#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"
#include "kernels/rotary/rotary_impl.h"

namespace saturate::kernels {
namespace {

Fit rotary_fits_cpu(const Context&, const RotaryArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit rotary_fits_cuda(const Context&, const RotaryArgs& a) noexcept {
  return fits_cuda(a.dtype, a.rows * a.head_size);
}
#endif

constexpr Impl<RotaryArgs> kRotary[] = {
    SAT_CUDA_IMPL({"rotary_cuda", DeviceKind::cuda, rotary_fits_cuda, rotary_cuda}){
        "rotary_cpu", DeviceKind::cpu, rotary_fits_cpu, rotary_cpu}};

}  // namespace

template <>
std::span<const Impl<RotaryArgs>> impls_of() noexcept {
  return kRotary;
}

void rotary(const Context& ctx, const RotaryArgs& a) {
  constexpr const char* kOp = "rotary";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"heads", a.heads}, {"head_size", a.head_size}});
  if (a.head_size % 2 != 0) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("head_size is {}: rotary positions pair channels, so it must be even",
                            a.head_size));
  }
  const int64_t width = a.heads * a.head_size;
  if (a.rows > 1 && (a.x_stride < width || a.y_stride < width)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("strides are {} and {} for {} heads of {}: rows of {} elements overlap",
                            a.x_stride, a.y_stride, a.heads, a.head_size, width));
  }
  if (!(a.base > 0.0f)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("base is {}: it must be positive", a.base));
  }
  if (!(a.factor >= 1.0f) || a.original < 0 ||
      (a.original > 0 && !(a.low > 0.0f && a.high > a.low))) {
    throw Error(
        Errc::invalid_argument, kOp,
        fmt::format("factor is {}, original {}, low {}, high {}: factor must be at least 1, "
                    "original not negative and 0 < low < high",
                    a.factor, a.original, a.low, a.high));
  }
  if (a.rows == 0 || width == 0) return;
  require_pointers(kOp, {{"x", a.x}, {"y", a.y}, {"positions", a.positions}});
  dispatch<RotaryArgs>(kOp, ctx, a, kRotary, [&] {
    return shape_text(a.dtype, {a.rows, a.heads, a.head_size});
  });
}

}  // namespace saturate::kernels
