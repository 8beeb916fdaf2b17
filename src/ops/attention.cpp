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

// One call of the kernels.
struct Call {
  AttentionSpec s;
  Value o, lse;
  kernels::AttentionArgs args;
  kernels::Plan<kernels::AttentionArgs> plan;

  kernels::AttentionArgs bind(const Run& r) const {
    kernels::AttentionArgs a = args;
    a.cu_q = r(args.cu_q);
    a.cu_k = r(args.cu_k);
    a.rng = r(args.rng);
    if (s.bias) a.bias = r(s.bias);
    a.q = at(r, s.q, a.dtype);
    a.k = at(r, s.k, a.dtype);
    a.v = at(r, s.v, a.dtype);
    a.o = r(o);
    a.lse = r(lse);
    return a;
  }
};

Call make_call(Tape& tape, const AttentionSpec& s, RngRef rng) {
  const Tape::Info q = tape.info(s.q.of), k = tape.info(s.k.of), v = tape.info(s.v.of);
  const int64_t width = s.heads * s.head_size;
  const float p = tape.training() ? s.dropout : 0.0f;
  if (p > 0) {
    if (s.first_row) rng.first_row = *s.first_row;
    if (rng.rows == 0) rng.rows = q.rows;
    rng.first_column = s.first_head, rng.columns = s.all_heads > 0 ? s.all_heads : s.heads;
  }
  Call c{
      .s = s,
      .o = tape.make("attention", q.dtype, q.rows, width),
      .lse = tape.make("attention_lse", tape.wide_type(), s.heads, q.rows),
      .args = {.cu_q = s.cu_q,
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
               .scale = s.scale > 0 ? s.scale : 1.0f / std::sqrt(static_cast<float>(s.head_size)),
               .dropout = p,
               .rng = rng,
               .alignment = s.ends_meet ? kernels::CausalAlignment::bottom_right
                                        : kernels::CausalAlignment::top_left},
      .plan = {}};
  if (s.window > 0) c.args.window_left = s.window - 1;
  c.args.soft_cap = s.soft_cap;
  if (s.bias) {
    SAT_ASSERT(!tape.training() && tape.info(s.bias).cols == s.max_q * s.max_k);
    c.args.bias = reinterpret_cast<const void*>(uintptr_t{256});  // for the plan
    c.args.bias_dtype = tape.wide_type();
    c.args.bias_head_stride = s.max_q * s.max_k;
    c.args.bias_row_stride = s.max_k;
  }
  if (c.s.flops == 0) c.s.flops = attention_flops(s, q.rows, k.rows);
  c.args.q = aligned_as(s.q, q.dtype), c.args.k = aligned_as(s.k, q.dtype);
  c.args.v = aligned_as(s.v, q.dtype);
  c.plan = planned(tape, q.dtype, c.args);
  return c;
}

// What the backward pass of a call needs beside it.
struct BackwardCall {
  Call forward;
  PackedGradients g;
  Value d_o, delta, workspace;
  kernels::AttentionBackwardArgs args;
  kernels::Plan<kernels::AttentionBackwardArgs> plan;

  void run(const Run& r) const {
    kernels::AttentionBackwardArgs x = args;
    x.forward = forward.bind(r);
    x.d_o = r(d_o);
    x.d_q = at(r, g.q, x.forward.dtype);
    x.d_k = at(r, g.k, x.forward.dtype);
    x.d_v = at(r, g.v, x.forward.dtype);
    x.delta = r(delta);
    x.workspace = r(workspace);
    kernels::attention_backward(r.ctx, plan, x);
  }
};

BackwardCall make_backward(Tape& t, const Call& c) {
  const kernels::AttentionArgs& a = c.args;
  BackwardCall b{.forward = c,
                 .g = make_gradients(t, c.s),
                 .d_o = t.gradient(c.o),
                 .delta = t.make("attention_delta", t.wide_type(), a.heads, a.q_rows),
                 .workspace = {},
                 .args = {},
                 .plan = {}};
  b.args = {.forward = a,
            .d_q = aligned_as(b.g.q, a.dtype),
            .d_k = aligned_as(b.g.k, a.dtype),
            .d_v = aligned_as(b.g.v, a.dtype),
            .d_q_stride = a.q_stride,
            .d_k_stride = a.k_stride,
            .d_v_stride = a.v_stride,
            .workspace_bytes = kernels::kAnyWorkspace};
  b.plan = planned(t, a.dtype, b.args);
  const int64_t bytes = b.args.workspace_bytes = b.plan.workspace_bytes;
  if (bytes > 0) b.workspace = t.make("attention_workspace", DType::f32, 1, (bytes + 3) / 4);
  return b;
}

}  // namespace

double attention_flops(const AttentionSpec& s, int64_t q_rows, int64_t k_rows) {
  // One product each for the scores and the result. A causal query sees half of the keys beside the
  // queries, and all before them.
  const auto mean = [&](int64_t rows, int64_t most) {
    return std::min(static_cast<double>(most),
                    static_cast<double>(rows) / static_cast<double>(s.sequences));
  };
  const double keys = mean(k_rows, s.max_k), beside = std::min(mean(q_rows, s.max_q), keys);
  return 4.0 * static_cast<double>(q_rows * s.heads * s.head_size) *
         (s.causal ? keys - beside / 2 : keys);
}

std::vector<Value> attention(Tape& tape, const std::vector<AttentionSpec>& parts) {
  RngRef rng;
  if (tape.training() && parts[0].dropout > 0) rng = tape.random(MaskKind::attention);
  std::vector<Call> calls;
  std::vector<Value> reads, writes, results;
  double flops = 0;
  for (const AttentionSpec& s : parts) {
    const Call& c = calls.emplace_back(make_call(tape, s, rng));
    reads.insert(reads.end(), {s.q.of, s.k.of, s.v.of});
    if (s.bias) reads.push_back(s.bias);
    writes.insert(writes.end(), {c.o, c.lse});
    results.push_back(c.o);
    flops += c.s.flops;
  }
  tape.record(
      "attention", reads, writes,
      [=](const Run& r) {
        for (const Call& c : calls) kernels::attention_forward(r.ctx, c.plan, c.bind(r));
      },
      [=](Tape& t) {
        std::vector<BackwardCall> back;
        std::vector<Value> needs, makes;
        for (const Call& c : calls) {
          const BackwardCall& b = back.emplace_back(make_backward(t, c));
          needs.insert(needs.end(), {c.s.q.of, c.s.k.of, c.s.v.of, c.o, c.lse, b.d_o});
          makes.insert(makes.end(), b.g.all.begin(), b.g.all.end());
          makes.insert(makes.end(), {b.delta, b.workspace});
        }
        t.record("attention_backward", needs, makes,
                 [=](const Run& r) {
                   for (const BackwardCall& b : back) b.run(r);
                 },
                 {}, {.flops = 2.5 * flops});  // five products
      },
      {.flops = flops});
  return results;
}

Value attention(Tape& tape, const AttentionSpec& spec) {
  return attention(tape, std::vector<AttentionSpec>{spec}).front();
}

Value rotary(Tape& tape, Slice x, const RotarySpec& s) {
  const Tape::Info xi = tape.info(x.of);
  const auto runs = s.runs.empty() ? std::vector<RowRun>{{.rows = xi.rows}} : s.runs;
  const auto record = [=](Tape& t, Value v, bool inverse, Tape::BackwardFn backward) {
    const Value y = t.alias("rotary", v);
    t.record(
        inverse ? "rotary_backward" : "rotary", {v}, {y},
        [=](const Run& r) {
          for (const RowRun& run : runs) {
            void* data = r.at(v, run.at * xi.cols + x.column);
            kernels::rotary(r.ctx, {.x = data,
                                    .y = data,
                                    .positions = r(s.positions + run.first),
                                    .rows = run.rows,
                                    .heads = s.heads,
                                    .head_size = s.head_size,
                                    .x_stride = xi.cols,
                                    .y_stride = xi.cols,
                                    .dtype = xi.dtype,
                                    .base = s.base,
                                    .inverse = inverse,
                                    .factor = s.factor,
                                    .low = s.low,
                                    .high = s.high,
                                    .original = s.original});
          }
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
