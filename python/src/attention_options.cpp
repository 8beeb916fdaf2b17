// SPDX-License-Identifier: Apache-2.0
#include "attention_options.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>

#include <utility>

#include "base/error.h"
#include "offsets.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using kernels::AttentionArgs;

// Where sequences begin. On the CPU the numbers are checked; on a GPU that would be a wait.
const int32_t* offsets(const char* op, const char* name, const std::optional<Tensor>& given,
                       Device device, int64_t& sequences, int64_t rows, int64_t longest) {
  if (!given) {
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
      require(cu[s] <= cu[s + 1] && cu[s + 1] - cu[s] <= longest, op,
              fmt::format("sequence {} of {} has {} rows; it must have 0 to {} (the longest that "
                          "was said)",
                          s, name, cu[s + 1] - cu[s], longest));
  }
  return cu;
}

// One value a head, in the type of the sums.
const void* per_head(const char* op, const char* name, const std::optional<Tensor>& t,
                     const AttentionArgs& a, Device device) {
  if (!t) return nullptr;
  require_shape(op, name, *t, {a.heads});
  require_type(op, name, *t, wide_of(a.dtype));
  require_device(op, name, *t, device);
  require_contiguous(op, name, *t);
  return t->data;
}

// (sequences or 1, heads or 1, ...): the first two dimensions of a bias or a block mask.
void require_shared(const char* op, const char* name, const Tensor& t, const AttentionArgs& a,
                    Device device) {
  require_device(op, name, t, device);
  require(t.dims() == 4 && (t.shape[0] == 1 || t.shape[0] == a.sequences) &&
              (t.shape[1] == 1 || t.shape[1] == a.heads),
          op,
          fmt::format("{} has shape {}; it must have 4 dimensions, the first {} (sequences) or 1, "
                      "the second {} (heads) or 1",
                      name, text_of(t.shape), a.sequences, a.heads));
  require(t.size() == 0 || t.shape[3] == 1 || t.strides[3] == 1, op,
          fmt::format("{} of shape {} has strides {}; the last must be 1: make it contiguous", name,
                      text_of(t.shape), text_of(t.strides)));
}

void take_bias(const char* op, const Tensor& bias, Device device, AttentionArgs& a) {
  require_shared(op, "bias", bias, a, device);
  require((bias.shape[2] == a.max_q || bias.shape[2] == 1) && bias.shape[3] == a.max_k, op,
          fmt::format("bias has shape {}; its third dimension must be {} (longest query) or 1, its "
                      "last {} (longest key)",
                      text_of(bias.shape), a.max_q, a.max_k));
  const SharedStrides s = shared_strides(bias);
  a.bias = bias.data, a.bias_dtype = bias.dtype;
  a.bias_sequence_stride = s.sequence, a.bias_head_stride = s.head, a.bias_row_stride = s.row;
}

void take_block_mask(const char* op, const Tensor& mask, Device device, AttentionArgs& a) {
  require(a.block_size > 0, op,
          fmt::format("block_size is {} with a block mask; pass its blocks' rows", a.block_size));
  require_type(op, "block_mask", mask, DType::i32);
  require_shared(op, "block_mask", mask, a, device);
  const int64_t rows = (a.max_q + a.block_size - 1) / a.block_size;
  const int64_t words = kernels::attention_block_mask_words(a);
  require(
      mask.shape[2] == rows && mask.shape[3] == words && (rows <= 1 || mask.strides[2] == words),
      op,
      fmt::format("block_mask has shape {} and strides {}; its last two dimensions must be "
                  "({}, {}), contiguous: 32 blocks a word",
                  text_of(mask.shape), text_of(mask.strides), rows, words));
  const SharedStrides s = shared_strides(mask);
  a.block_mask = static_cast<const uint32_t*>(mask.data);
  a.block_mask_sequence_stride = s.sequence, a.block_mask_head_stride = s.head;
}

int64_t window(const char* op, const char* name, int64_t side) {
  require(side >= -1, op,
          fmt::format("{} is {}; pass the keys on that side, or -1 for no bound", name, side));
  return side == -1 ? kernels::kUnlimitedWindow : side;
}

void take_features(const char* op, const AttentionOptions& x, Device device, AttentionArgs& a) {
  a.causal = x.causal, a.scale = x.scale, a.dropout = x.dropout;
  a.soft_cap = x.soft_cap, a.rotary_base = x.rotary_base, a.block_size = x.block_size;
  if (x.bottom_right) a.alignment = kernels::CausalAlignment::bottom_right;
  a.window_left = window(op, "window_left", x.window_left);
  a.window_right = window(op, "window_right", x.window_right);
  a.alibi_slopes = per_head(op, "alibi_slopes", x.alibi_slopes, a, device);
  a.sinks = per_head(op, "sinks", x.sinks, a, device);
  if (x.bias) take_bias(op, *x.bias, device, a);
  if (x.block_mask) take_block_mask(op, *x.block_mask, device, a);
  if (x.rng) {
    require_shape(op, "the random state", *x.rng, {4});
    require_type(op, "the random state", *x.rng, DType::i32);
    require_device(op, "the random state", *x.rng, device);
    require_contiguous(op, "the random state", *x.rng);
    a.rng = {static_cast<const uint64_t*>(x.rng->data), 0};
  }
}

}  // namespace

SharedStrides shared_strides(const Tensor& t) {
  const auto stride = [&](size_t i) { return t.shape[i] == 1 ? 0 : t.strides[i]; };
  return {stride(0), stride(1), stride(2)};
}

int64_t row_stride(const char* op, const char* name, const Tensor& t) {
  require(
      t.dims() == 3, op,
      fmt::format("{} has shape {}; it must be (rows, heads, head size)", name, text_of(t.shape)));
  const int64_t heads = t.shape[1], size = t.shape[2];
  const bool packed =
      t.size() == 0 || ((size == 1 || t.strides[2] == 1) && (heads == 1 || t.strides[1] == size));
  require(packed, op,
          fmt::format("{} of shape {} has strides {}; the last must be 1 and heads must follow "
                      "each other, {} elements apart: make it contiguous",
                      name, text_of(t.shape), text_of(t.strides), size));
  return t.shape[0] <= 1 ? heads * size : t.strides[0];
}

AttentionArgs attention_args(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                             const Tensor& o, const Tensor& lse, const AttentionOptions& x) {
  AttentionArgs a;
  a.q_stride = row_stride(op, "q", q);
  a.k_stride = row_stride(op, "k", k);
  a.v_stride = row_stride(op, "v", v);
  a.o_stride = row_stride(op, "o", o);
  a.q_rows = q.shape[0], a.heads = q.shape[1], a.head_size = q.shape[2];
  a.k_rows = k.shape[0], a.kv_heads = k.shape[1], a.v_head_size = v.shape[2];
  require(a.heads > 0 && a.kv_heads > 0 && a.head_size > 0 && a.v_head_size > 0, op,
          fmt::format("q has shape {}, k {} and v {}; heads and head sizes must not be 0",
                      text_of(q.shape), text_of(k.shape), text_of(v.shape)));
  require_shape(op, "k", k, {a.k_rows, a.kv_heads, a.head_size});
  require_shape(op, "v", v, {a.k_rows, a.kv_heads, a.v_head_size});
  require_shape(op, "o", o, {a.q_rows, a.heads, a.v_head_size});
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
  take_features(op, x, q.device, a);
  return a;
}

void bind_attention_options(nb::module_& m) {
  using Array = std::optional<Tensor>;
  nb::class_<AttentionOptions>(m, "AttentionOptions", "Sequences and features of one attention.")
      .def(
          "__init__",
          [](AttentionOptions* x, int64_t sequences, Array cu_q, Array cu_k, int64_t max_q,
             int64_t max_k, bool causal, bool bottom_right, int64_t window_left,
             int64_t window_right, float scale, float soft_cap, float rotary_base, float dropout,
             Array rng, Array bias, Array alibi_slopes, Array sinks, Array block_mask,
             int64_t block_size, bool deterministic) {
            new (x) AttentionOptions{sequences,    cu_q,       cu_k,         max_q,
                                     max_k,        causal,     bottom_right, window_left,
                                     window_right, scale,      soft_cap,     rotary_base,
                                     dropout,      rng,        bias,         alibi_slopes,
                                     sinks,        block_mask, block_size,   deterministic};
          },
          nb::kw_only(), nb::arg("sequences"), nb::arg("cu_q") = nb::none(),
          nb::arg("cu_k") = nb::none(), nb::arg("max_q"), nb::arg("max_k"),
          nb::arg("causal") = false, nb::arg("bottom_right") = false, nb::arg("window_left") = -1,
          nb::arg("window_right") = -1, nb::arg("scale"), nb::arg("soft_cap") = 0.0f,
          nb::arg("rotary_base") = 0.0f, nb::arg("dropout") = 0.0f, nb::arg("rng") = nb::none(),
          nb::arg("bias") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
          nb::arg("sinks") = nb::none(), nb::arg("block_mask") = nb::none(),
          nb::arg("block_size") = 0, nb::arg("deterministic") = true);
}

}  // namespace saturate::python
