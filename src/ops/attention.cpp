// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "kernels/attention/attention.h"
#include "kernels/attention/tune/table.h"
#include "kernels/rotary/rotary.h"

namespace saturate::ops {
namespace {

void* at(const Run& r, const Slice& s, DType type) {
  return r.as<char>(s.of) + static_cast<size_t>(s.column) * size_of(type);
}

// For a plan: a pointer with the alignment that the slice has, since values are aligned to 256.
void* aligned_as(const Slice& s, DType type) {
  return reinterpret_cast<void*>(uintptr_t{256} + static_cast<size_t>(s.column) * size_of(type));
}

// Gradients lie as the values do: one packed matrix for each distinct value among q, k and v.
struct PackedGradients {
  Slice q, k, v;
  std::vector<Value> all;
};

PackedGradients make_gradients(Tape& t, const AttentionSpec& s) {
  PackedGradients g;
  const auto gradient_of = [&](const Slice& x) {
    if (!t.gradient(x.of)) {
      const Tape::Info i = t.info(x.of);
      const Value d = t.make("d_attention", i.dtype, i.rows, i.cols);
      t.set_gradient(x.of, d);
      g.all.push_back(d);
    }
    return Slice{t.gradient(x.of), x.column};
  };
  SAT_ASSERT(!t.gradient(s.q.of) && !t.gradient(s.k.of) && !t.gradient(s.v.of));
  g.q = gradient_of(s.q);
  g.k = gradient_of(s.k);
  g.v = gradient_of(s.v);
  return g;
}

// Chosen while the list is recorded. One on parameters without memory says how much it takes and
// never runs: on the CPU it may be one of another device's types, whose attention is taken to need no
// workspace.
template <class Args>
kernels::Plan<Args> planned(const Tape& t, DType type, const Args& args) {
  if (!t.parameters().allocated() && !t.device().is_cuda() && size_of(type) == 2) return {};
  const Context where{t.device()};
  return kernels::plan_attention(where, args, t.parameters().kernels().attention_table.get());
}

}  // namespace

Value attention(Tape& tape, const AttentionSpec& s) {
  const Tape::Info q = tape.info(s.q.of), k = tape.info(s.k.of), v = tape.info(s.v.of);
  const int64_t width = s.heads * s.head_size;
  const float p = tape.training() ? s.dropout : 0.0f;
  RngRef rng;
  if (p > 0) {
    rng = tape.random(MaskKind::attention);
    if (rng.rows == 0) rng.rows = q.rows;
    rng.first_column = s.first_head, rng.columns = s.all_heads > 0 ? s.all_heads : s.heads;
  }
  const Value o = tape.make("attention", q.dtype, q.rows, width);
  const Value lse = tape.make("attention_lse", tape.wide_type(), s.heads, q.rows);
  kernels::AttentionArgs args{.cu_q = s.cu_q,
                              .cu_k = s.cu_k,
                              .sequences = s.sequences,
                              .heads = s.heads,
                              .kv_heads = s.kv_heads,
                              .head_size = s.head_size,
                              .q_rows = q.rows,
                              .k_rows = k.rows,
                              .max_q = s.max_q,
                              .max_k = s.max_k,
                              .q_stride = q.cols,
                              .k_stride = k.cols,
                              .v_stride = v.cols,
                              .o_stride = width,
                              .dtype = q.dtype,
                              .causal = s.causal,
                              .scale = 1.0f / std::sqrt(static_cast<float>(s.head_size)),
                              .dropout = p,
                              .rng = rng};
  // One product each for the scores and the result. Sequences are taken to be of the mean length.
  const double keys = std::min(static_cast<double>(s.max_k),
                               static_cast<double>(k.rows) / static_cast<double>(s.sequences));
  const double flops = (s.causal ? 2.0 : 4.0) * static_cast<double>(q.rows * width) * keys;
  args.q = aligned_as(s.q, q.dtype), args.k = aligned_as(s.k, q.dtype);
  args.v = aligned_as(s.v, q.dtype);
  const auto plan = planned(tape, q.dtype, args);
  const auto bind = [=](const Run& r) {
    kernels::AttentionArgs a = args;
    a.cu_q = r(args.cu_q);
    a.cu_k = r(args.cu_k);
    a.rng = r(args.rng);
    a.q = at(r, s.q, a.dtype);
    a.k = at(r, s.k, a.dtype);
    a.v = at(r, s.v, a.dtype);
    a.o = r(o);
    a.lse = r(lse);
    return a;
  };
  tape.record(
      "attention", {s.q.of, s.k.of, s.v.of}, {o, lse},
      [=](const Run& r) { kernels::attention_forward(r.ctx, plan, bind(r)); },
      [=](Tape& t) {
        const Value d_o = t.gradient(o);
        const PackedGradients g = make_gradients(t, s);
        const Value delta = t.make("attention_delta", t.wide_type(), s.heads, q.rows);
        kernels::AttentionBackwardArgs b{.forward = args,
                                         .d_q = aligned_as(g.q, q.dtype),
                                         .d_k = aligned_as(g.k, q.dtype),
                                         .d_v = aligned_as(g.v, q.dtype),
                                         .d_q_stride = q.cols,
                                         .d_k_stride = k.cols,
                                         .d_v_stride = v.cols,
                                         .workspace_bytes = kernels::kAnyWorkspace};
        const auto plan_back = planned(t, q.dtype, b);
        const int64_t bytes = b.workspace_bytes = plan_back.workspace_bytes;
        const Value workspace =
            bytes > 0 ? t.make("attention_workspace", DType::f32, 1, (bytes + 3) / 4) : Value{};
        std::vector<Value> writes = g.all;
        writes.push_back(delta);
        if (workspace) writes.push_back(workspace);
        t.record("attention_backward", {s.q.of, s.k.of, s.v.of, o, lse, d_o}, writes,
                 [=](const Run& r) {
                   kernels::AttentionBackwardArgs x = b;
                   x.forward = bind(r);
                   x.d_o = r(d_o);
                   x.d_q = at(r, g.q, q.dtype);
                   x.d_k = at(r, g.k, q.dtype);
                   x.d_v = at(r, g.v, q.dtype);
                   x.delta = r(delta);
                   x.workspace = workspace ? r(workspace) : nullptr;
                   kernels::attention_backward(r.ctx, plan_back, x);
                 },
                 {}, {.flops = 2.5 * flops});  // five products
      },
      {.flops = flops});
  return o;
}

Value rotary(Tape& tape, Slice x, const RotarySpec& s) {
  const Tape::Info xi = tape.info(x.of);
  const auto record = [=](Tape& t, Value v, bool inverse, Tape::BackwardFn backward) {
    const Value y = t.alias("rotary", v);
    t.record(
        inverse ? "rotary_backward" : "rotary", {v}, {y},
        [=](const Run& r) {
          void* data = at(r, {v, x.column}, xi.dtype);
          kernels::rotary(r.ctx, {.x = data,
                                  .y = data,
                                  .positions = r(s.positions),
                                  .rows = xi.rows,
                                  .heads = s.heads,
                                  .head_size = s.head_size,
                                  .x_stride = xi.cols,
                                  .y_stride = xi.cols,
                                  .dtype = xi.dtype,
                                  .base = s.base,
                                  .inverse = inverse});
        },
        std::move(backward));
    return y;
  };
  // The closure learns y's id after recording, through this shared slot.
  auto y = std::make_shared<Value>();
  *y = record(tape, x.of, false,
              [=](Tape& t) { t.set_gradient(x.of, record(t, t.gradient(*y), true, {})); });
  return *y;
}

}  // namespace saturate::ops
