// SPDX-License-Identifier: Apache-2.0
// Matrix products for Python: checks every argument, fills MatmulArgs (kernels/gemm/matmul.h).
#include "kernels/gemm/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "choices.h"
#include "tensor.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using kernels::MatmulArgs;
using kernels::MatmulPlan;
using kernels::Transpose;

struct Operand {
  int64_t rows, cols, ld, batch_stride;
  Transpose transposed;
};

// A (rows, cols) or (batch, rows, cols) array, row-major or column-major (that is, transposed).
Operand operand(const char* name, const Tensor& t, bool may_transpose) {
  const char* const op = "matmul";
  require(t.dims() == 2 || t.dims() == 3, op,
          fmt::format("{} has shape {}; it must have 2 or 3 dimensions", name, text_of(t.shape)));
  const size_t r = t.shape.size() - 2, c = r + 1;
  const int64_t rows = t.shape[r], cols = t.shape[c];
  const int64_t step_r = t.strides[r], step_c = t.strides[c];
  Operand x{rows, cols, 0, t.dims() == 3 ? t.strides[0] : 0, Transpose::no};
  const int64_t least_row = std::max<int64_t>(cols, 1), least_col = std::max<int64_t>(rows, 1);
  const bool by_rows = (cols <= 1 || step_c == 1) && (rows <= 1 || step_r >= least_row);
  const bool by_cols = (rows <= 1 || step_r == 1) && (cols <= 1 || step_c >= least_col);
  if (rows == 0 || cols == 0) {
    x.ld = least_row;
  } else if (by_rows) {
    x.ld = rows <= 1 ? least_row : step_r;
  } else if (by_cols && may_transpose) {
    x.ld = cols <= 1 ? least_col : step_c;
    x.transposed = Transpose::yes;
  } else {
    require(false, op,
            fmt::format("{} of shape {} has strides {}; one of the last two must be 1: make it "
                        "contiguous",
                        name, text_of(t.shape), text_of(t.strides)));
  }
  return x;
}

MatmulArgs matmul_args(const Tensor& a, const Tensor& b, const Tensor& d, Optional bias,
                       bool allow_tf32) {
  const char* const op = "matmul";
  const Operand x = operand("a", a, true), y = operand("b", b, true), z = operand("d", d, false);
  MatmulArgs args;
  args.m = x.rows, args.n = y.cols, args.k = x.cols;
  require(a.dims() == b.dims(), op,
          fmt::format("a has shape {} and b {}; both must have 2 dimensions or both 3",
                      text_of(a.shape), text_of(b.shape)));
  require(x.cols == y.rows, op,
          fmt::format("a has shape {} and b {}; a's columns ({}) must be b's rows ({})",
                      text_of(a.shape), text_of(b.shape), x.cols, y.rows));
  if (a.dims() == 3) {
    require(a.shape[0] == b.shape[0], op,
            fmt::format("a has shape {} and b {}; the batches must be equal", text_of(a.shape),
                        text_of(b.shape)));
    require_shape(op, "d", d, {a.shape[0], args.m, args.n});
    args.batch = a.shape[0];
  } else {
    require_shape(op, "d", d, {args.m, args.n});
  }
  require_type(op, "b", b, a.dtype);
  require_device(op, "b", b, a.device);
  require_device(op, "d", d, a.device);
  if (bias != nullptr) {
    require_shape(op, "bias", *bias, {args.n});
    require_type(op, "bias", *bias, a.dtype);
    require_device(op, "bias", *bias, a.device);
    require_contiguous(op, "bias", *bias);
    args.bias = bias->data;
  }
  args.a = a.data, args.b = b.data, args.d = d.data;
  args.lda = x.ld, args.ldb = y.ld, args.ldd = z.ld;
  args.stride_a = x.batch_stride, args.stride_b = y.batch_stride, args.stride_d = z.batch_stride;
  args.ta = x.transposed, args.tb = y.transposed;
  args.ab_type = a.dtype, args.d_type = d.dtype;
  args.allow_tf32 = allow_tf32;
  return args;
}

std::shared_ptr<const MatmulPlan> plan_of(Choices& choices, const MatmulArgs& args, Device device) {
  const Context ctx{.device = device, .workspace_bytes = matmul_workspace_limit(device, args)};
  return choices.of(device)->products.plan(ctx, args);
}

void run(Choices& choices, const Tensor& a, const Tensor& b, const Tensor& d, Optional bias,
         Optional workspace, bool allow_tf32, uintptr_t stream) {
  const MatmulArgs args = matmul_args(a, b, d, bias, allow_tf32);
  Context ctx;
  ctx.device = a.device;
  ctx.stream = reinterpret_cast<void*>(stream);
  if (workspace != nullptr) {
    require_device("matmul", "the workspace", *workspace, a.device);
    require_contiguous("matmul", "the workspace", *workspace);
    ctx.workspace = workspace->data;
    ctx.workspace_bytes = static_cast<size_t>(workspace->size()) * size_of(workspace->dtype);
  }
  const nb::gil_scoped_release release;
  const DeviceScope scope(a.device);
  plan_of(choices, args, a.device)->run(ctx, args);
}

size_t workspace_bytes(Choices& choices, const Tensor& a, const Tensor& b, const Tensor& d,
                       Optional bias, bool allow_tf32) {
  if (!a.device.is_cuda()) return 0;
  const MatmulArgs args = matmul_args(a, b, d, bias, allow_tf32);
  const nb::gil_scoped_release release;
  const DeviceScope scope(a.device);
  return plan_of(choices, args, a.device)->workspace_bytes;
}

}  // namespace

void bind_matmul(nb::module_& m, const std::shared_ptr<Choices>& choices) {
  m.def(
      "matmul",
      [choices](const Tensor& a, const Tensor& b, const Tensor& d, Optional bias,
                Optional workspace, bool allow_tf32,
                uintptr_t stream) { run(*choices, a, b, d, bias, workspace, allow_tf32, stream); },
      nb::arg("a"), nb::arg("b"), nb::arg("d"), nb::arg("bias").none(), nb::arg("workspace").none(),
      nb::kw_only(), nb::arg("allow_tf32"), nb::arg("stream"),
      "d = a b + bias; 2 dimensions each, or 3 with equal batches.");
  m.def(
      "matmul_workspace_bytes",
      [choices](const Tensor& a, const Tensor& b, const Tensor& d, Optional bias, bool allow_tf32) {
        return workspace_bytes(*choices, a, b, d, bias, allow_tf32);
      },
      nb::arg("a"), nb::arg("b"), nb::arg("d"), nb::arg("bias").none(), nb::kw_only(),
      nb::arg("allow_tf32"), "Bytes of scratch that this product takes; 0 on the CPU.");
}

}  // namespace saturate::python
