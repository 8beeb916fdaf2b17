// SPDX-License-Identifier: Apache-2.0
// Convolutions for Python: checks every argument, fills Conv2dArgs (kernels/conv/conv2d.h).
#include "kernels/conv/conv2d.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>

#include <utility>

#include "base/error.h"
#include "tensor.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using kernels::Conv2dArgs;
using Pair = std::pair<int64_t, int64_t>;  // vertical, horizontal

struct Geometry {
  Pair stride, padding, dilation;
};

// x (batch, height, width, channels), w (filters, filter height, filter width, channels) and y as
// the kernel writes it, all contiguous and of one type on one device.
Conv2dArgs conv2d_args(const Tensor& x, const Tensor& w, const Tensor& y, const Geometry& g) {
  const char* const op = "conv2d";
  require(x.dims() == 4 && w.dims() == 4, op,
          fmt::format("x has shape {} and the weight {}; both must have 4 dimensions",
                      text_of(x.shape), text_of(w.shape)));
  require(x.shape[3] == w.shape[3], op,
          fmt::format("x has {} channels and the weight {}; they must be equal (one group)",
                      x.shape[3], w.shape[3]));
  Conv2dArgs args;
  args.x = x.data, args.w = w.data, args.y = y.data;
  args.batch = x.shape[0], args.height = x.shape[1], args.width = x.shape[2];
  args.channels = x.shape[3];
  args.filters = w.shape[0], args.filter_height = w.shape[1], args.filter_width = w.shape[2];
  args.vertical = {g.stride.first, g.padding.first, g.dilation.first};
  args.horizontal = {g.stride.second, g.padding.second, g.dilation.second};
  args.dtype = x.dtype;
  for (const auto& [name, t] : {std::pair{"x", &x}, {"the weight", &w}, {"y", &y}}) {
    require_type(op, name, *t, x.dtype);
    require_device(op, name, *t, x.device);
    require_contiguous(op, name, *t);
  }
  const bool steps = g.stride.first >= 1 && g.stride.second >= 1;  // else the kernel names them
  if (steps) {
    require_shape(op, "y", y,
                  {args.batch, args.output_height(), args.output_width(), args.filters});
  }
  return args;
}

Context context_of(const Tensor& x, Optional workspace, uintptr_t stream) {
  Context ctx;
  ctx.device = x.device;
  ctx.stream = reinterpret_cast<void*>(stream);
  if (workspace != nullptr) {
    require_device("conv2d", "the workspace", *workspace, x.device);
    require_contiguous("conv2d", "the workspace", *workspace);
    ctx.workspace = workspace->data;
    ctx.workspace_bytes = static_cast<size_t>(workspace->size()) * size_of(workspace->dtype);
  }
  return ctx;
}

void forward(const Tensor& x, const Tensor& w, Optional bias, const Tensor& y, const Geometry& g,
             uintptr_t stream) {
  Conv2dArgs args = conv2d_args(x, w, y, g);
  if (bias != nullptr) {
    require_shape("conv2d", "bias", *bias, {args.filters});
    require_type("conv2d", "bias", *bias, x.dtype);
    require_device("conv2d", "bias", *bias, x.device);
    require_contiguous("conv2d", "bias", *bias);
    args.bias = bias->data;
  }
  const Context ctx = context_of(x, nullptr, stream);
  const nb::gil_scoped_release release;
  const DeviceScope scope(x.device);
  kernels::conv2d_forward(ctx, args);
}

void backward(const Tensor& d_y, const Tensor& x, const Tensor& w, Optional d_x, Optional d_w,
              Optional workspace, const Geometry& g, uintptr_t stream) {
  kernels::Conv2dBackwardArgs args{.forward = conv2d_args(x, w, d_y, g), .d_y = d_y.data};
  for (const auto& [name, gradient, like] : {std::tuple{"d_x", d_x, &x}, {"d_w", d_w, &w}}) {
    if (gradient == nullptr) continue;
    require(gradient->shape == like->shape, "conv2d",
            fmt::format("{} has shape {}; it must be {}", name, text_of(gradient->shape),
                        text_of(like->shape)));
    require_type("conv2d", name, *gradient, x.dtype);
    require_device("conv2d", name, *gradient, x.device);
    require_contiguous("conv2d", name, *gradient);
  }
  args.d_x = d_x != nullptr ? d_x->data : nullptr;
  args.d_w = d_w != nullptr ? d_w->data : nullptr;
  const Context ctx = context_of(x, workspace, stream);
  const nb::gil_scoped_release release;
  const DeviceScope scope(x.device);
  kernels::conv2d_backward(ctx, args);
}

}  // namespace

void bind_conv2d(nb::module_& m) {
  m.def(
      "conv2d_forward",
      [](const Tensor& x, const Tensor& w, Optional bias, const Tensor& y, Pair stride,
         Pair padding, Pair dilation, uintptr_t s) {
        forward(x, w, bias, y, {stride, padding, dilation}, s);
      },
      nb::arg("x"), nb::arg("w"), nb::arg("bias").none(), nb::arg("y"), nb::kw_only(),
      nb::arg("stride"), nb::arg("padding"), nb::arg("dilation"), nb::arg("stream"),
      "y = x convolved with w, channels last.");
  m.def(
      "conv2d_backward",
      [](const Tensor& d_y, const Tensor& x, const Tensor& w, Optional d_x, Optional d_w,
         Optional workspace, Pair stride, Pair padding, Pair dilation, uintptr_t s) {
        backward(d_y, x, w, d_x, d_w, workspace, {stride, padding, dilation}, s);
      },
      nb::arg("d_y"), nb::arg("x"), nb::arg("w"), nb::arg("d_x").none(), nb::arg("d_w").none(),
      nb::arg("workspace").none(), nb::kw_only(), nb::arg("stride"), nb::arg("padding"),
      nb::arg("dilation"), nb::arg("stream"), "Gradients of x and w; None is not computed.");
}

}  // namespace saturate::python
