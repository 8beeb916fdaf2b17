// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv2d.h"

#include <fmt/format.h>

#include "kernels/conv/conv2d_impl.h"
#include "kernels/dispatch.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

// clang-format off
constexpr Impl<Conv2dArgs> kForward[] = {
    SAT_CUDA_IMPL({"conv2d_forward_cuda", DeviceKind::cuda, conv2d_forward_cuda_fits, conv2d_forward_cuda})
    {"conv2d_forward_cpu", DeviceKind::cpu, conv2d_forward_cpu_fits, conv2d_forward_cpu},
};
constexpr Impl<Conv2dBackwardArgs> kBackward[] = {
    SAT_CUDA_IMPL({"conv2d_backward_cuda", DeviceKind::cuda, conv2d_backward_cuda_fits, conv2d_backward_cuda})
    {"conv2d_backward_cpu", DeviceKind::cpu, conv2d_backward_cpu_fits, conv2d_backward_cpu},
};
// clang-format on

void require(const char* op, bool ok, const std::string& what) {
  if (!ok) throw Error(Errc::invalid_argument, op, what);
}

void check_axis(const char* op, const char* name, int64_t size, int64_t filter,
                const Conv2dAxis& a) {
  require(op, size >= 0 && filter >= 1,
          fmt::format("{}: size {} and filter {} must be at least 0 and 1", name, size, filter));
  require(op, a.stride >= 1 && a.padding >= 0 && a.dilation >= 1,
          fmt::format("{}: stride {}, padding {}, dilation {} must be at least 1, 0, 1", name,
                      a.stride, a.padding, a.dilation));
  const int64_t reach = a.dilation * (filter - 1) + 1;
  require(op, size == 0 || size + 2 * a.padding >= reach,
          fmt::format("{}: a filter that reaches over {} elements does not fit into {} with {} of "
                      "padding on either side",
                      name, reach, size, a.padding));
}

// True when there is something to compute.
bool checked(const char* op, const Conv2dArgs& x) {
  require(op, x.batch >= 0 && x.channels >= 1 && x.filters >= 1,
          fmt::format("batch {}, channels {}, filters {} must be at least 0, 1, 1", x.batch,
                      x.channels, x.filters));
  check_axis(op, "height", x.height, x.filter_height, x.vertical);
  check_axis(op, "width", x.width, x.filter_width, x.horizontal);
  require(op, x.dtype != DType::i32, "dtype is i32; it must be a floating-point type");
  return x.batch > 0 && x.height > 0 && x.width > 0;
}

}  // namespace

template <>
std::span<const Impl<Conv2dArgs>> impls_of() noexcept {
  return kForward;
}
template <>
std::span<const Impl<Conv2dBackwardArgs>> impls_of() noexcept {
  return kBackward;
}

void conv2d_forward(const Context& ctx, const Conv2dArgs& x) {
  constexpr const char* kOp = "conv2d_forward";
  if (!checked(kOp, x)) return;
  require(kOp, x.x != nullptr && x.w != nullptr && x.y != nullptr, "x, w or y is null");
  dispatch(kOp, ctx, x, std::span<const Impl<Conv2dArgs>>(kForward), [&] {
    return shape_text(x.dtype, {x.batch, x.height, x.width, x.channels, x.filters, x.filter_height,
                                x.filter_width});
  });
}

void conv2d_backward(const Context& ctx, const Conv2dBackwardArgs& b) {
  constexpr const char* kOp = "conv2d_backward";
  const Conv2dArgs& x = b.forward;
  if (!checked(kOp, x)) {
    require(kOp, b.d_w == nullptr,
            "d_w of an empty batch is asked for; it would be all zeros: leave it null");
    return;
  }
  require(kOp, b.d_y != nullptr, "d_y is null");
  require(kOp, b.d_x == nullptr || x.w != nullptr, "d_x is asked for and w is null");
  require(kOp, b.d_w == nullptr || x.x != nullptr, "d_w is asked for and x is null");
  if (b.d_x == nullptr && b.d_w == nullptr) return;
  dispatch(kOp, ctx, b, std::span<const Impl<Conv2dBackwardArgs>>(kBackward), [&] {
    return shape_text(b.forward.dtype,
                      {b.forward.batch, b.forward.height, b.forward.width, b.forward.channels,
                       b.forward.filters, b.forward.filter_height, b.forward.filter_width});
  });
}

}  // namespace saturate::kernels
