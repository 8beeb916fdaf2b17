// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul_plan.h"

namespace saturate::ops {
namespace {

using kernels::MatmulArgs;
using kernels::MatmulPlan;
using kernels::Transpose;

// A product of values on a tape; `args` lacks only the pointers.
struct Product {
  Value a = {}, b = {}, c = {}, d = {}, bias = {};
  MatmulArgs args = {};
  int64_t a_element = 0, d_element = 0;  // where a and d begin

  // The kernel is chosen here, while the list is recorded.
  MatmulPlan plan(const Tape& t, Value w) const {
    // A list on parameters without memory says how much it takes and never runs. Weights that are
    // gathered before they are used lie in the arena.
    if (t.info(w).memory == nullptr && !t.parameters().allocated()) return {};
    MatmulArgs x = args;
    // The arena's memory comes later; all of it lies on 256 bytes, which is all that counts.
    uintptr_t next = 4096;
    const auto memory_of = [&](Value v) -> void* {
      if (!v) return nullptr;
      void* const known = t.info(v).memory;
      return known != nullptr ? known : reinterpret_cast<void*>(next += 4096);
    };
    x.a = memory_of(a), x.b = memory_of(b), x.c = memory_of(c), x.d = memory_of(d);
    x.bias = memory_of(bias);
    x.a = static_cast<const char*>(x.a) + static_cast<size_t>(a_element) * size_of(x.ab_type);
    x.d = static_cast<char*>(x.d) + static_cast<size_t>(d_element) * size_of(x.d_type);
    const Context where{.device = t.device(), .workspace_bytes = t.workspace_bytes()};
    return kernels::plan_matmul(where, t.parameters().kernels(), x);
  }

  void run(const Run& r, const MatmulPlan& plan) const {
    MatmulArgs x = args;
    x.a = r.at(a, a_element), x.b = r(b), x.c = r(c), x.d = r.at(d, d_element), x.bias = r(bias);
    plan.run(r.ctx, x);
  }

  OperationTraits traits() const {
    return {.flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k)};
  }
};

void record_bias_gradient(Tape& t, Value d_y, Value bias) {
  bool first = false;
  const Value d_bias = t.parameter_gradient(bias, &first);
  const Tape::Info dy = t.info(d_y);
  kernels::ColumnSumArgs args{.rows = dy.rows, .cols = dy.cols, .ld = dy.cols, .dtype = dy.dtype};
  const int64_t scratch = kernels::column_sum_scratch_bytes(t.device(), args);
  const Value partial =
      scratch ? t.make("bias_partial", DType::f32, 1, (scratch + 3) / 4) : Value{};
  t.record_parameter_gradient("bias_gradient", {d_y}, {d_bias, partial}, [=](const Run& r) {
    kernels::ColumnSumArgs a = args;
    a.x = r(d_y);
    a.out = r(d_bias);
    a.partial = r(partial);
    a.accumulate = r.adds(first);
    kernels::column_sum(r.ctx, a);
  });
}

void record_weight_gradient(Tape& t, Value x, Value w, Value d_y) {
  bool first = false;
  const Value d_w = t.parameter_gradient(w, &first);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const DType wide = t.wide_type();
  Product add{.a = d_y,
              .b = x,
              .d = d_w,
              .args = {.m = dy.cols,
                       .n = xi.cols,
                       .k = xi.rows,
                       .lda = dy.cols,
                       .ldb = xi.cols,
                       .ldc = xi.cols,
                       .ldd = xi.cols,
                       .ta = Transpose::yes,
                       .ab_type = xi.dtype,
                       .d_type = wide,
                       .beta = 1.0f,
                       .allow_tf32 = t.parameters().kernels().allow_tf32}};
  Product set = add;
  set.args.beta = 0.0f;
  // The first contribution adds from the second micro-step on.
  const MatmulPlan adds = add.plan(t, w), sets = first ? set.plan(t, w) : MatmulPlan{};
  t.record_parameter_gradient(
      "linear_weight_gradient", {x, d_y}, {d_w},
      [=](const Run& r) {
        if (r.adds(first)) {
          add.run(r, adds);
        } else {
          set.run(r, sets);
        }
      },
      add.traits());
}

void record_input_gradient(Tape& t, Value x, Value w, Value d_y) {
  const Value before = t.gradient(x);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  const Product p{.a = d_y,
                  .b = w,
                  .c = before,
                  .d = d_x,
                  .args = {.m = xi.rows,
                           .n = xi.cols,
                           .k = dy.cols,
                           .lda = dy.cols,
                           .ldb = xi.cols,
                           .ldc = xi.cols,
                           .ldd = xi.cols,
                           .ab_type = xi.dtype,
                           .d_type = xi.dtype,
                           .beta = before ? 1.0f : 0.0f,
                           .allow_tf32 = t.parameters().kernels().allow_tf32}};
  t.record(
      "linear_input_gradient", {d_y, w, before}, {d_x},
      [p, plan = p.plan(t, w)](const Run& r) { p.run(r, plan); }, {}, p.traits());
  t.set_gradient(x, d_x);
}

Value cast_to(Tape& t, const char* name, Value x, DType type) {
  const Tape::Info i = t.info(x);
  if (i.dtype == type) return x;
  const Value y = t.make(name, type, i.rows, i.cols);
  t.record("cast", {x}, {y}, [=](const Run& r) {
    kernels::cast(
        r.ctx, {.x = r(x), .y = r(y), .count = i.rows * i.cols, .x_type = i.dtype, .y_type = type});
  });
  return y;
}

void require_inner(const char* op, const Tape::Info& x, const Tape::Info& w, int64_t bias) {
  if (x.cols == w.cols && bias == w.rows) return;
  throw Error(Errc::invalid_argument, op,
              fmt::format("x is ({}, {}), w ({}, {}), bias ({}): inner sizes or bias differ",
                          x.rows, x.cols, w.rows, w.cols, bias));
}

Product product_of(const Tape& t, Value x, Value w, Value bias, Value y) {
  const Tape::Info xi = t.info(x), wi = t.info(w);
  return {.a = x,
          .b = w,
          .d = y,
          .bias = bias,
          .args = {.m = xi.rows,
                   .n = wi.rows,
                   .k = xi.cols,
                   .lda = xi.cols,
                   .ldb = wi.cols,
                   .ldc = wi.rows,
                   .ldd = wi.rows,
                   .tb = Transpose::yes,
                   .ab_type = xi.dtype,
                   .d_type = xi.dtype,
                   .allow_tf32 = t.parameters().kernels().allow_tf32}};
}

}  // namespace

Value linear(Tape& tape, Value x, Value w, Value bias) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  require_inner("linear", xi, wi, bias ? tape.info(bias).cols : wi.rows);
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  const Product p = product_of(tape, x, w, bias, y);
  tape.record(
      "linear", {x, w, bias}, {y}, [p, plan = p.plan(tape, w)](const Run& r) { p.run(r, plan); },
      [=](Tape& t) { linear_gradients(t, x, w, bias, t.gradient(y)); }, p.traits());
  return y;
}

void linear_gradients(Tape& t, Value x, Value w, Value bias, Value d_y) {
  if (bias) record_bias_gradient(t, d_y, bias);
  record_weight_gradient(t, x, w, d_y);
  record_input_gradient(t, x, w, d_y);
}

void linear_rows(Tape& t, Value x, Value w, Value bias, Value y,
                 const std::vector<RowBlock>& blocks, Tape::BackwardFn backward) {
  const Tape::Info xi = t.info(x), wi = t.info(w);
  require_inner("linear_rows", xi, wi, bias ? t.info(bias).cols : wi.rows);
  std::vector<std::pair<Product, MatmulPlan>> products;
  double flops = 0;
  for (const RowBlock& block : blocks) {
    Product p = product_of(t, x, w, bias, y);
    p.args.m = block.rows;
    p.a_element = block.from * xi.cols;
    p.d_element = block.to * wi.rows;
    flops += p.traits().flops;
    products.emplace_back(p, p.plan(t, w));
  }
  t.record("linear", {x, w, bias}, {y},
           [products = std::move(products)](const Run& r) {
             for (const auto& [p, plan] : products) p.run(r, plan);
           },
           std::move(backward), {.flops = flops});
}

Value add_bias(Tape& tape, Value x, Value bias) {
  const Tape::Info xi = tape.info(x);
  if (tape.info(bias).cols != xi.cols) {
    throw Error(Errc::invalid_argument, "add_bias",
                fmt::format("x is ({}, {}) and bias ({}): columns differ", xi.rows, xi.cols,
                            tape.info(bias).cols));
  }
  const Value y = tape.alias("biased", x);
  tape.record(
      "add_bias", {x, bias}, {y},
      [=](const Run& r) {
        kernels::add(r.ctx, {.a = r(x),
                             .b = r(bias),
                             .y = r(y),
                             .count = xi.rows * xi.cols,
                             .dtype = xi.dtype,
                             .b_count = xi.cols});
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        record_bias_gradient(t, d_y, bias);
        t.set_gradient(x, d_y);
      });
  return y;
}

Value wide_linear(Tape& tape, Value x, Value w) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  require_inner("wide_linear", xi, wi, wi.rows);
  const DType wide = tape.wide_type();
  const Value y = tape.make("wide_linear", wide, xi.rows, wi.rows);
  const Product p = product_of(tape, cast_to(tape, "wide_x", x, wide), w, {}, y);
  tape.record(
      "wide_linear", {p.a, w}, {y}, [p, plan = p.plan(tape, w)](const Run& r) { p.run(r, plan); },
      [=](Tape& t) {
        const Value d_y = t.gradient(y), again = cast_to(t, "wide_x", x, wide);
        record_weight_gradient(t, again, w, d_y);
        record_input_gradient(t, again, w, d_y);
        if (again != x) t.add_gradient(x, cast_to(t, "d_x", t.gradient(again), xi.dtype));
      },
      p.traits());
  return y;
}

}  // namespace saturate::ops
