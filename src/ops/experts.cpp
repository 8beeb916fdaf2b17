// SPDX-License-Identifier: Apache-2.0
#include "ops/experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"
#include "kernels/gemm/grouped/grouped_gemm.h"

namespace saturate::ops {
namespace {

// What a micro-batch's choices say together: those that got places, and counts of each expert.
struct Placed {
  Value kept, counts;
};

Placed record_places(Tape& t, Value choices, int64_t experts, int64_t first_row,
                     const RoutingSpec& s) {
  const Tape::Info own = t.info(choices);
  const Value all = s.rows.group.size() > 1 ? gather_rows(t, s.rows, choices) : choices;
  const int64_t rows = t.info(all).rows;
  const Placed placed{.kept = t.make("kept_choices", DType::i32, own.rows, s.k),
                      .counts = t.make("expert_counts", DType::i32, 1, experts)};
  const Value scratch =
      t.make("expert_scratch", DType::i32, 1, kernels::expert_scratch(rows, s.k, experts));
  t.record("limit_choices", {all}, {placed.kept, placed.counts, scratch}, [=](const Run& r) {
    kernels::limit_choices(r.ctx, {.choices = r.as<int32_t>(all),
                                   .valid = r(s.valid),
                                   .kept = r.as<int32_t>(placed.kept),
                                   .counts = r.as<int32_t>(placed.counts),
                                   .scratch = r.as<int32_t>(scratch),
                                   .rows = rows,
                                   .first_row = rows == own.rows ? 0 : first_row,
                                   .own_rows = own.rows,
                                   .experts = experts,
                                   .k = s.k,
                                   .capacity_factor = s.capacity_factor,
                                   .count_first = s.count_first});
  });
  return placed;
}

kernels::GroupedGemmArgs grouped_args(const Tape& t, Value x, Value w, const SortedRows& sorted) {
  const Tape::Info xi = t.info(x), wi = t.info(w);
  return {.groups = sorted.experts,
          .rows = xi.rows,
          .n = wi.rows / sorted.experts,
          .k = wi.cols,
          .dtype = xi.dtype};
}

}  // namespace

Routing route(Tape& tape, Value logits, const RoutingSpec& s) {
  const Tape::Info li = tape.info(logits);
  const bool training = tape.training();
  const RngRef rng = tape.random(MaskKind::routing);
  const kernels::RouteTokensArgs args{.rows = li.rows,
                                      .experts = li.cols,
                                      .k = s.k,
                                      .dtype = li.dtype,
                                      .random_second = training && s.random_second,
                                      .rng = rng};
  const Routing routed{.choices = tape.make("expert_choices", DType::i32, li.rows, s.k),
                       .gates = tape.make("expert_gates", li.dtype, li.rows, s.k)};
  const auto bind = [=](const Run& r) {
    kernels::RouteTokensArgs a = args;
    a.logits = r(logits);
    a.valid = r(s.valid);
    a.rng = r(rng);
    return a;
  };
  // The backward pass reads counts, so they exist before the operation that it belongs to.
  const auto placed = std::make_shared<Placed>();
  tape.record(
      "route_tokens", {logits}, {routed.choices, routed.gates},
      [=](const Run& r) {
        kernels::RouteTokensArgs a = bind(r);
        a.choices = r.as<int32_t>(routed.choices);
        a.gates = r(routed.gates);
        kernels::route_tokens(r.ctx, a);
      },
      [=](Tape& t) {
        const AuxiliaryLosses losses = t.auxiliary();
        const Value d_gates = t.gradient(routed.gates);
        const Value d_logits = t.make("d_logits", li.dtype, li.rows, li.cols);
        const auto [kept, counts] = *placed;
        t.record("route_tokens_backward", {logits, d_gates, counts}, {d_logits}, [=](const Run& r) {
          kernels::route_tokens_backward(r.ctx, {.forward = bind(r),
                                                 .d_gates = r(d_gates),
                                                 .counts = r.as<int32_t>(counts),
                                                 .d_logits = r(d_logits),
                                                 .balance_loss = s.balance_loss,
                                                 .z_loss = s.z_loss,
                                                 .grad_scale = losses.grad_scale,
                                                 .device_scale = losses.device_scale});
        });
        t.add_gradient(logits, d_logits);
        if (losses.routing == nullptr) return;
        // In the backward pass, which runs once whatever is recomputed.
        double* const totals = losses.routing + s.layer * kernels::kRoutingBlocks *
                                                    (li.cols + kernels::kRoutingTotals);
        t.record("routing_statistics", {logits, routed.choices, kept, counts}, {},
                 [=](const Run& r) {
                   kernels::routing_statistics(r.ctx, {.logits = r(logits),
                                                       .choices = r.as<int32_t>(routed.choices),
                                                       .kept = r.as<int32_t>(kept),
                                                       .counts = r.as<int32_t>(counts),
                                                       .valid = r(s.valid),
                                                       .totals = totals,
                                                       .rows = li.rows,
                                                       .first_row = rng.first_row,
                                                       .experts = li.cols,
                                                       .k = s.k,
                                                       .dtype = li.dtype});
                 });
      });
  if (!training) return routed;
  *placed = record_places(tape, routed.choices, li.cols, rng.first_row, s);
  return {.choices = placed->kept, .gates = routed.gates};
}

SortedRows sort_by_expert(Tape& tape, Value choices, int64_t experts) {
  const Tape::Info ci = tape.info(choices);
  const SortedRows sorted{.slots = tape.make("expert_slots", DType::i32, ci.rows, ci.cols),
                          .offsets = tape.make("expert_offsets", DType::i32, 1, experts + 1),
                          .most = ci.rows * std::min(ci.cols, experts),
                          .experts = experts};
  const Value scratch = tape.make("expert_scratch", DType::i32, 1,
                                  kernels::expert_scratch(ci.rows, ci.cols, experts));
  tape.record("sort_by_expert", {choices}, {sorted.slots, sorted.offsets, scratch},
              [=](const Run& r) {
                kernels::sort_by_expert(r.ctx, {.choices = r.as<int32_t>(choices),
                                                .slots = r.as<int32_t>(sorted.slots),
                                                .offsets = r.as<int32_t>(sorted.offsets),
                                                .scratch = r.as<int32_t>(scratch),
                                                .rows = ci.rows,
                                                .k = ci.cols,
                                                .experts = experts});
              });
  return sorted;
}

Value dispatch_rows(Tape& tape, Value x, const SortedRows& sorted) {
  const Tape::Info xi = tape.info(x);
  const kernels::DispatchRowsArgs args{
      .rows = xi.rows, .cols = xi.cols, .k = tape.info(sorted.slots).cols, .dtype = xi.dtype};
  const Value y = tape.make("dispatched", xi.dtype, sorted.most, xi.cols), slots = sorted.slots;
  tape.record(
      "dispatch_rows", {x, slots}, {y},
      [=](const Run& r) {
        kernels::DispatchRowsArgs a = args;
        a.x = r(x), a.slots = r.as<int32_t>(slots), a.y = r(y);
        kernels::dispatch_rows(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y), d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
        t.record("dispatch_rows_backward", {d_y, slots}, {d_x}, [=](const Run& r) {
          kernels::DispatchRowsArgs a = args;
          a.slots = r.as<int32_t>(slots);
          kernels::dispatch_rows_backward(r.ctx, {.forward = a, .d_y = r(d_y), .d_x = r(d_x)});
        });
        t.add_gradient(x, d_x);
      });
  return y;
}

Value grouped_linear(Tape& tape, Value x, Value w, const SortedRows& sorted) {
  using kernels::GroupedForm;
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  if (xi.cols != wi.cols || wi.rows % sorted.experts != 0) {
    throw Error(Errc::invalid_argument, "grouped_linear",
                fmt::format("x is ({}, {}), w ({}, {}) of {} experts: inner sizes differ, or rows "
                            "of w are no multiple of the experts",
                            xi.rows, xi.cols, wi.rows, wi.cols, sorted.experts));
  }
  const kernels::GroupedGemmArgs args = grouped_args(tape, x, w, sorted);
  const Value y = tape.make("grouped_linear", xi.dtype, xi.rows, args.n), offsets = sorted.offsets;
  const OperationTraits traits{.flops = 2.0 * static_cast<double>(sorted.most) *
                                        static_cast<double>(args.n * args.k)};
  const auto run = [=](const Run& r, GroupedForm form, Value a, Value b, Value d, float beta) {
    kernels::GroupedGemmArgs g = args;
    g.form = form, g.beta = beta;
    g.a = r(a), g.b = r(b), g.d = r(d), g.offsets = r.as<int32_t>(offsets);
    kernels::grouped_gemm(r.ctx, g);
  };
  tape.record(
      "grouped_linear", {x, w, offsets}, {y},
      [=](const Run& r) { run(r, GroupedForm::forward, x, w, y, 0.0f); },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        bool first = false;
        const Value d_w = t.parameter_gradient(w, &first);
        t.record_parameter_gradient(
            "grouped_weight_gradient", {x, d_y, offsets}, {d_w},
            [=](const Run& r) {
              run(r, GroupedForm::weight_gradient, d_y, x, d_w, r.adds(first) ? 1.0f : 0.0f);
            },
            traits);
        const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
        t.record(
            "grouped_input_gradient", {d_y, w, offsets}, {d_x},
            [=](const Run& r) { run(r, GroupedForm::input_gradient, d_y, w, d_x, 0.0f); }, {},
            traits);
        t.add_gradient(x, d_x);
      },
      traits);
  return y;
}

Value expert_activation(Tape& tape, Value x, const SortedRows& sorted, kernels::ActivationKind kind,
                        bool gated) {
  const Tape::Info xi = tape.info(x);
  const int64_t cols = gated ? xi.cols / 2 : xi.cols;
  const Value y = tape.make("activation", xi.dtype, xi.rows, cols), offsets = sorted.offsets;
  const auto bind = [=, experts = sorted.experts](const Run& r) {
    return kernels::ActivationArgs{.kind = kind,
                                   .gated = gated,
                                   .x = r(x),
                                   .rows = xi.rows,
                                   .cols = cols,
                                   .dtype = xi.dtype,
                                   .rng = {},
                                   .used_rows = r.as<int32_t>(offsets) + experts};
  };
  tape.record(
      "expert_activation", {x, offsets}, {y},
      [=](const Run& r) {
        kernels::ActivationArgs a = bind(r);
        a.y = r(y);
        kernels::activation_forward(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        const Value d_x = t.make("d_activation", xi.dtype, xi.rows, xi.cols);
        t.record("expert_activation_backward", {x, offsets, d_y}, {d_x}, [=](const Run& r) {
          kernels::activation_backward(r.ctx, {.forward = bind(r), .d_y = r(d_y), .d_x = r(d_x)});
        });
        t.add_gradient(x, d_x);
      });
  return y;
}

Value combine_rows(Tape& tape, Value x, Value gates, const SortedRows& sorted) {
  const Tape::Info xi = tape.info(x), gi = tape.info(gates);
  const kernels::CombineRowsArgs args{
      .rows = gi.rows, .cols = xi.cols, .k = gi.cols, .dtype = xi.dtype};
  const Value y = tape.make("combined", xi.dtype, gi.rows, xi.cols), slots = sorted.slots;
  const auto bind = [=](const Run& r) {
    kernels::CombineRowsArgs a = args;
    a.x = r(x), a.slots = r.as<int32_t>(slots), a.gates = r(gates);
    return a;
  };
  tape.record(
      "combine_rows", {x, slots, gates}, {y},
      [=](const Run& r) {
        kernels::CombineRowsArgs a = bind(r);
        a.y = r(y);
        kernels::combine_rows(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y), d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
        const Value d_gates = t.make("d_gates", gi.dtype, gi.rows, gi.cols);
        t.record(
            "combine_rows_backward", {x, slots, gates, d_y}, {d_x, d_gates}, [=](const Run& r) {
              kernels::combine_rows_backward(
                  r.ctx, {.forward = bind(r), .d_y = r(d_y), .d_x = r(d_x), .d_gates = r(d_gates)});
            });
        t.add_gradient(x, d_x);
        t.add_gradient(gates, d_gates);
      });
  return y;
}

}  // namespace saturate::ops
