// SPDX-License-Identifier: Apache-2.0
// Attention for Python, forward and backward.
#include "kernels/attention/attention.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>

#include "attention_options.h"
#include "base/error.h"
#include "choices.h"
#include "kernels/attention/tune/table.h"
#include "tensor.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionBackwardArgs;

Context context(const Tensor& t, uintptr_t stream) {
  Context ctx;
  ctx.device = t.device;
  ctx.stream = reinterpret_cast<void*>(stream);
  return ctx;
}

// By the tuned table of the device, if Python gave one.
template <class Args>
kernels::Plan<Args> plan(Choices& choices, const Context& ctx, const Args& args) {
  const auto device = choices.of(ctx.device);
  return kernels::plan_attention(ctx, args, device->options.attention_table.get());
}

void forward(Choices& choices, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
             const Tensor& lse, const AttentionOptions& options, uintptr_t stream) {
  const AttentionArgs a = attention_args("attention", q, k, v, o, lse, options);
  const nb::gil_scoped_release release;
  const DeviceScope scope(q.device);
  const Context ctx = context(q, stream);
  kernels::attention_forward(ctx, plan(choices, ctx, a), a);
}

// A gradient of something of one value a head.
void* per_head(const char* op, const char* name, const std::optional<Tensor>& t,
               const AttentionArgs& a, Device device) {
  if (!t) return nullptr;
  require_shape(op, name, *t, {a.heads});
  require_type(op, name, *t, wide_of(a.dtype));
  require_device(op, name, *t, device);
  require_contiguous(op, name, *t);
  return t->data;
}

void backward(Choices& choices, const Tensor& d_o, const Tensor& q, const Tensor& k,
              const Tensor& v, const Tensor& o, const Tensor& lse, const Tensor& d_q,
              const Tensor& d_k, const Tensor& d_v, const Tensor& delta,
              const std::optional<Tensor>& d_bias, const std::optional<Tensor>& d_slopes,
              const std::optional<Tensor>& d_sinks, const std::optional<Tensor>& workspace,
              const AttentionOptions& options, uintptr_t stream) {
  const char* const op = "attention backward";
  AttentionBackwardArgs b;
  b.forward = attention_args(op, q, k, v, o, lse, options);
  require_shape(op, "d_q", d_q, {q.shape[0], q.shape[1], q.shape[2]});
  require_shape(op, "d_k", d_k, {k.shape[0], k.shape[1], k.shape[2]});
  require_shape(op, "d_v", d_v, {v.shape[0], v.shape[1], v.shape[2]});
  require_shape(op, "d_o", d_o, {o.shape[0], o.shape[1], o.shape[2]});
  require_shape(op, "delta", delta, {b.forward.heads, b.forward.q_rows});
  for (const auto& [name, t] :
       {std::pair{"d_o", &d_o}, {"d_q", &d_q}, {"d_k", &d_k}, {"d_v", &d_v}}) {
    require_type(op, name, *t, q.dtype);
    require_device(op, name, *t, q.device);
  }
  require_type(op, "delta", delta, lse.dtype);
  require_device(op, "delta", delta, q.device);
  require_contiguous(op, "delta", delta);
  require(row_stride(op, "d_o", d_o) == b.forward.o_stride, op,
          "the gradient of the output and the output differ in their row stride");
  b.d_o = d_o.data, b.d_q = d_q.data, b.d_k = d_k.data, b.d_v = d_v.data, b.delta = delta.data;
  b.d_q_stride = row_stride(op, "d_q", d_q);
  b.d_k_stride = row_stride(op, "d_k", d_k);
  b.d_v_stride = row_stride(op, "d_v", d_v);
  b.deterministic = options.deterministic;
  if (d_bias) {
    require(options.bias.has_value() && d_bias->shape == options.bias->shape, op,
            fmt::format("d_bias has shape {}; it must have that of bias", text_of(d_bias->shape)));
    require_type(op, "d_bias", *d_bias, wide_of(q.dtype));
    require_device(op, "d_bias", *d_bias, q.device);
    require_contiguous(op, "d_bias", *d_bias);
    const SharedStrides s = shared_strides(*d_bias);
    b.d_bias = d_bias->data;
    b.d_bias_sequence_stride = s.sequence, b.d_bias_head_stride = s.head;
    b.d_bias_row_stride = s.row;
  }
  b.d_alibi_slopes = per_head(op, "d_alibi_slopes", d_slopes, b.forward, q.device);
  b.d_sinks = per_head(op, "d_sinks", d_sinks, b.forward, q.device);
  if (workspace) {
    require_device(op, "the workspace", *workspace, q.device);
    require_contiguous(op, "the workspace", *workspace);
    b.workspace = workspace->data;
    b.workspace_bytes = workspace->size() * static_cast<int64_t>(size_of(workspace->dtype));
  }
  const nb::gil_scoped_release release;
  const DeviceScope scope(q.device);
  const Context ctx = context(q, stream);
  if (b.workspace == nullptr) b.workspace_bytes = 0;
  kernels::attention_backward(ctx, plan(choices, ctx, b), b);
}

// What the backward pass of these arguments can use.
int64_t backward_workspace_bytes(Choices& choices, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& o, const Tensor& lse,
                                 const AttentionOptions& options) {
  AttentionBackwardArgs b;
  b.forward = attention_args("attention backward", q, k, v, o, lse, options);
  b.deterministic = options.deterministic;
  b.workspace_bytes = kernels::kAnyWorkspace;
  const nb::gil_scoped_release release;
  const DeviceScope scope(q.device);
  return plan(choices, context(q, 0), b).workspace_bytes;
}

}  // namespace

void bind_attention(nb::module_& m, const std::shared_ptr<Choices>& choices) {
  bind_attention_options(m);
  // A function of the choices and Python's arguments as one of the arguments alone.
  const auto with_choices = [&choices]<class... Args>(auto(*f)(Choices&, Args...)) {
    return [choices, f](Args... args) { return f(*choices, args...); };
  };
  m.def("attention_forward", with_choices(&forward), nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("o"), nb::arg("lse"), nb::arg("options"), nb::arg("stream"), "Writes o and lse.");
  m.def("attention_backward", with_choices(&backward), nb::arg("d_o"), nb::arg("q"), nb::arg("k"),
        nb::arg("v"), nb::arg("o"), nb::arg("lse"), nb::arg("d_q"), nb::arg("d_k"), nb::arg("d_v"),
        nb::arg("delta"), nb::arg("d_bias").none(), nb::arg("d_alibi_slopes").none(),
        nb::arg("d_sinks").none(), nb::arg("workspace").none(), nb::arg("options"),
        nb::arg("stream"), "Writes the gradients and, as scratch, delta and the workspace.");
  m.def("attention_backward_workspace_bytes", with_choices(&backward_workspace_bytes), nb::arg("q"),
        nb::arg("k"), nb::arg("v"), nb::arg("o"), nb::arg("lse"), nb::arg("options"),
        "Bytes of scratch with which attention_backward is fastest; 0 where none helps.");
}

}  // namespace saturate::python
