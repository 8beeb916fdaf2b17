// SPDX-License-Identifier: Apache-2.0
// Attention for Python: checks every argument, fills AttentionArgs (kernels/attention/attention.h).
#include "kernels/attention/attention.h"

#include <fmt/format.h>

#include "base/error.h"
#include "offsets.h"
#include "tensor.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using kernels::AttentionArgs;
using kernels::AttentionBackwardArgs;

// Elements between rows of a (rows, heads, head size) array. Heads must lie side by side in a row.
int64_t row_stride(const char* op, const char* name, const Tensor& t) {
  require(
      t.dims() == 3, op,
      fmt::format("{} has shape {}; it must be (rows, heads, head size)", name, text_of(t.shape)));
  const int64_t heads = t.shape[1], size = t.shape[2];
  const bool packed =
      t.size() == 0 || ((size == 1 || t.strides[2] == 1) && (heads == 1 || t.strides[1] == size));
  require(
      packed, op,
      fmt::format("{} of shape {} has strides {}; the last must be 1 and heads must follow each "
                  "other ({} elements apart): make it contiguous",
                  name, text_of(t.shape), text_of(t.strides), size));
  return t.shape[0] <= 1 ? heads * size : t.strides[0];
}

// Where sequences begin. On the CPU the numbers are checked; on a GPU that would be a wait.
const int32_t* offsets(const char* op, const char* name, Optional given, Device device,
                       int64_t& sequences, int64_t rows, int64_t longest) {
  if (given == nullptr) {
    require(
        sequences >= 0 && (sequences == 0 ? rows == 0 : rows % sequences == 0), op,
        fmt::format("{} rows are not {} sequences of one length; pass {}", rows, sequences, name));
    return uniform_offsets(device, sequences, sequences == 0 ? 0 : rows / sequences);
  }
  require_type(op, name, *given, DType::i32);
  require_device(op, name, *given, device);
  require(given->dims() == 1 && given->shape[0] >= 1, op,
          fmt::format("{} has shape {}; it must be (sequences + 1,)", name, text_of(given->shape)));
  require_contiguous(op, name, *given);
  sequences = given->shape[0] - 1;
  const auto* cu = static_cast<const int32_t*>(given->data);
  if (!device.is_cuda()) {
    require(cu[0] >= 0 && cu[sequences] <= rows, op,
            fmt::format("{} goes from {} to {}; it must lie within 0 and the {} rows", name, cu[0],
                        cu[sequences], rows));
    for (int64_t s = 0; s < sequences; ++s)
      require(
          cu[s] <= cu[s + 1] && cu[s + 1] - cu[s] <= longest, op,
          fmt::format("sequence {} of {} has {} rows; it must have 0 to {} (the longest that was "
                      "said)",
                      s, name, cu[s + 1] - cu[s], longest));
  }
  return cu;
}

struct Options {
  Optional cu_q, cu_k, rng;
  int64_t sequences, max_q, max_k;
  bool causal;
  float scale, dropout;
};

AttentionArgs attention_args(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& o, const Tensor& lse, const Options& x) {
  AttentionArgs a;
  a.q_stride = row_stride(op, "q", q);
  a.k_stride = row_stride(op, "k", k);
  a.v_stride = row_stride(op, "v", v);
  a.o_stride = row_stride(op, "o", o);
  a.q_rows = q.shape[0], a.heads = q.shape[1], a.head_size = q.shape[2];
  a.k_rows = k.shape[0], a.kv_heads = k.shape[1];
  require_shape(op, "k", k, {a.k_rows, a.kv_heads, a.head_size});
  require_shape(op, "v", v, {a.k_rows, a.kv_heads, a.head_size});
  require_shape(op, "o", o, {a.q_rows, a.heads, a.head_size});
  require_shape(op, "lse", lse, {a.heads, a.q_rows});
  a.dtype = q.dtype;
  for (const auto& [name, t] : {std::pair{"k", &k}, {"v", &v}, {"o", &o}})
    require_type(op, name, *t, q.dtype);
  require_type(op, "lse", lse, wide_of(q.dtype));
  require_contiguous(op, "lse", lse);
  for (const auto& [name, t] : {std::pair{"k", &k}, {"v", &v}, {"o", &o}, {"lse", &lse}})
    require_device(op, name, *t, q.device);
  a.q = q.data, a.k = k.data, a.v = v.data, a.o = o.data, a.lse = lse.data;

  a.max_q = x.max_q, a.max_k = x.max_k;
  a.sequences = x.sequences;
  a.cu_q = offsets(op, "cu_seqlens_q", x.cu_q, q.device, a.sequences, a.q_rows, a.max_q);
  int64_t k_sequences = x.sequences;
  a.cu_k = offsets(op, "cu_seqlens_k", x.cu_k, q.device, k_sequences, a.k_rows, a.max_k);
  require(a.sequences == k_sequences, op,
          fmt::format("cu_seqlens_q tells of {} sequences, cu_seqlens_k of {}; they must agree",
                      a.sequences, k_sequences));
  a.causal = x.causal, a.scale = x.scale, a.dropout = x.dropout;
  if (x.rng != nullptr) {
    require(x.rng->shape == std::vector<int64_t>{4} && x.rng->dtype == DType::i32, op,
            "the random state must be 4 int32: seed and step, low half first");
    require_device(op, "the random state", *x.rng, q.device);
    require_contiguous(op, "the random state", *x.rng);
    a.rng = {static_cast<const uint64_t*>(x.rng->data), 0};
  }
  return a;
}

Context context(const Tensor& t, uintptr_t stream) {
  Context ctx;
  ctx.device = t.device;
  ctx.stream = reinterpret_cast<void*>(stream);
  return ctx;
}

void forward(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o, const Tensor& lse,
             Optional cu_q, Optional cu_k, Optional rng, int64_t sequences, int64_t max_q,
             int64_t max_k, bool causal, float scale, float dropout, uintptr_t stream) {
  const AttentionArgs a =
      attention_args("attention", q, k, v, o, lse,
                     {cu_q, cu_k, rng, sequences, max_q, max_k, causal, scale, dropout});
  const nb::gil_scoped_release release;
  const DeviceScope scope(q.device);
  kernels::attention_forward(context(q, stream), a);
}

void backward(const Tensor& d_o, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& o,
              const Tensor& lse, const Tensor& d_q, const Tensor& d_k, const Tensor& d_v,
              const Tensor& delta, Optional cu_q, Optional cu_k, Optional rng, int64_t sequences,
              int64_t max_q, int64_t max_k, bool causal, float scale, float dropout,
              uintptr_t stream) {
  const char* const op = "attention backward";
  AttentionBackwardArgs b;
  b.forward = attention_args(op, q, k, v, o, lse,
                             {cu_q, cu_k, rng, sequences, max_q, max_k, causal, scale, dropout});
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
  const nb::gil_scoped_release release;
  const DeviceScope scope(q.device);
  kernels::attention_backward(context(q, stream), b);
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def("attention_forward", &forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("o"),
        nb::arg("lse"), nb::arg("cu_q").none(), nb::arg("cu_k").none(), nb::arg("rng").none(),
        nb::kw_only(), nb::arg("sequences"), nb::arg("max_q"), nb::arg("max_k"), nb::arg("causal"),
        nb::arg("scale"), nb::arg("dropout"), nb::arg("stream"),
        "Writes o and lse. Without cu_q (cu_k) the rows are `sequences` sequences of one length.");
  m.def("attention_backward", &backward, nb::arg("d_o"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
        nb::arg("o"), nb::arg("lse"), nb::arg("d_q"), nb::arg("d_k"), nb::arg("d_v"),
        nb::arg("delta"), nb::arg("cu_q").none(), nb::arg("cu_k").none(), nb::arg("rng").none(),
        nb::kw_only(), nb::arg("sequences"), nb::arg("max_q"), nb::arg("max_k"), nb::arg("causal"),
        nb::arg("scale"), nb::arg("dropout"), nb::arg("stream"), "Writes d_q, d_k, d_v and delta.");
}

}  // namespace saturate::python
