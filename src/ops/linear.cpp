// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "kernels/activation/activation.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul_plan.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "ops/block_linear.h"
#include "ops/computed_rows.h"
#include "ops/fp8_linear.h"
#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::MatmulPlan;
using kernels::Transpose;

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

// Of add_low_rank(); y's gradient is the sum's.
void low_rank_gradients(Tape& t, Value y, Value z, const std::vector<LowRankPart>& parts,
                        Value d_y) {
  const Tape::Info dy = t.info(d_y), zi = t.info(z);
  const Value d_z = t.make("d_low_rank", zi.dtype, zi.rows, zi.cols);
  std::vector<std::pair<Product, MatmulPlan>> products;
  std::vector<Value> reads{d_y};
  double flops = 0;
  int64_t z_column = 0;
  for (const LowRankPart& part : parts) {
    const Tape::Info b = t.info(part.b);
    record_weight_gradient(t, z, {z_column, b.cols}, part.b, d_y, {part.column, b.rows},
                           part.scale);
    const Product p{.a = d_y,
                    .b = part.b,
                    .d = d_z,
                    .args = {.m = dy.rows,
                             .n = b.cols,
                             .k = b.rows,
                             .lda = dy.cols,
                             .ldb = b.cols,
                             .ldc = zi.cols,
                             .ldd = zi.cols,
                             .ab_type = zi.dtype,
                             .d_type = zi.dtype,
                             .alpha = part.scale,
                             .allow_tf32 = t.parameters().kernels().allow_tf32},
                    .a_element = part.column,
                    .d_element = z_column};
    products.emplace_back(p, p.plan(t, part.b));
    reads.push_back(part.b);
    flops += p.traits().flops;
    z_column += b.cols;
  }
  t.record("low_rank_gradient", std::move(reads), {d_z},
           [products = std::move(products)](const Run& r) {
             for (const auto& [p, plan] : products) p.run(r, plan);
           },
           {}, {.flops = flops});
  t.set_gradient(z, d_z);
  t.set_gradient(y, d_y);
}

// The kernel is chosen here; what it rounds x to lies in the arena.
Value record_packed(Tape& t, Value x, const kernels::PackedView& w, Value bias,
                    std::optional<kernels::ActivationKind> activation) {
  const Tape::Info xi = t.info(x);
  const Value y = t.make("linear", xi.dtype, xi.rows, w.n);
  const kernels::PackedLinearArgs args{
      .w = w,
      .rows = xi.rows,
      .ldx = xi.cols,
      .ldy = w.n,
      .activation = activation,
      .level = std::min(kernels::cpu_level(), t.parameters().kernels().cpu),
      .listed = ComputedRows::of(xi.rows)};
  const auto plan = kernels::plan_packed_linear({.device = t.device()}, args);
  const Value scratch = plan.workspace_bytes > 0
                            ? t.make("rounded", DType::i32, 1, (plan.workspace_bytes + 3) / 4)
                            : Value{};
  t.record("linear", {x, bias}, {y, scratch},
           [=](const Run& r) {
             kernels::PackedLinearArgs a = args;
             a.x = r.as<float>(x), a.y = r.as<float>(y), a.bias = r.as<float>(bias);
             Context ctx = r.ctx;
             ctx.workspace = r(scratch);
             plan.run(ctx, a);
           },
           {}, {.flops = 2.0 * static_cast<double>(xi.rows) * static_cast<double>(w.n * w.k)});
  return y;
}

}  // namespace

Value activated_linear(Tape& tape, Value x, Value w, Value bias, kernels::ActivationKind kind) {
  const kernels::PackedWeights* const packed = tape.packed(w);
  const Tape::Info wi = tape.info(w);
  require_inner("activated_linear", tape.info(x), wi, bias ? tape.info(bias).cols : wi.rows);
  if (packed != nullptr) return record_packed(tape, x, packed->view(), bias, kind);
  if (tape.training() || !tape.device().is_cuda() || multiplies_in_fp8(tape, w) ||
      block_format_of(tape, w))
    return {};
  Product p = product_of(tape, x, w, bias, x);  // a result is aligned as x is
  p.args.epilogue = {.kind = kernels::EpilogueKind::activation, .activation = kind};
  if (!p.choose(tape).epilogue_pays) return {};
  p.d = tape.make("linear_activation", tape.info(x).dtype, tape.info(x).rows, wi.rows);
  tape.record(
      "linear_activation", {x, w, bias}, {p.d},
      [p, plan = p.plan(tape, w)](const Run& r) { p.run(r, plan); }, {}, p.traits());
  return p.d;
}

Value linear(Tape& tape, Value x, Value w, Value bias) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  require_inner("linear", xi, wi, bias ? tape.info(bias).cols : wi.rows);
  if (const auto* packed = tape.packed(w)) return record_packed(tape, x, packed->view(), bias, {});
  if (multiplies_in_fp8(tape, w)) return fp8_linear(tape, x, w, bias);
  if (const auto format = block_format_of(tape, w)) return block_linear(tape, x, w, bias, *format);
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  const Product p = product_of(tape, x, w, bias, y);
  tape.record(
      "linear", {x, w, bias}, {y}, [p, plan = p.plan(tape, w)](const Run& r) { p.run(r, plan); },
      [=](Tape& t) {
        linear_gradients(t, x, w, t.bias_is_summed(y) ? Value{} : bias, t.gradient(y));
      },
      p.traits());
  tape.sums_to_bias(y, bias);
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

Value add_low_rank(Tape& tape, Value y, Value z, const std::vector<LowRankPart>& parts) {
  const Tape::Info yi = tape.info(y), zi = tape.info(z);
  const bool tf32 = tape.parameters().kernels().allow_tf32;
  int64_t rank = 0;
  for (const LowRankPart& p : parts) rank += tape.info(p.b).cols;
  std::vector<std::pair<Product, MatmulPlan>> products;
  double flops = 0;
  const Value sum = tape.alias("low_rank", y);
  std::vector<Value> reads{y, z};
  int64_t z_column = 0;
  for (const LowRankPart& part : parts) {
    const Tape::Info b = tape.info(part.b);
    if (part.column < 0 || part.column + b.rows > yi.cols || rank != zi.cols ||
        zi.rows != yi.rows) {
      throw Error(Errc::invalid_argument, "add_low_rank",
                  fmt::format("columns {} + {} of y ({}, {}) from z ({}, {}) of ranks {}: they do "
                              "not fit",
                              part.column, b.rows, yi.rows, yi.cols, zi.rows, zi.cols, rank));
    }
    const Product p{.a = z,
                    .b = part.b,
                    .d = sum,
                    .args = {.m = yi.rows,
                             .n = b.rows,
                             .k = b.cols,
                             .lda = zi.cols,
                             .ldb = b.cols,
                             .ldc = yi.cols,
                             .ldd = yi.cols,
                             .tb = Transpose::yes,
                             .ab_type = yi.dtype,
                             .d_type = yi.dtype,
                             .alpha = part.scale,
                             .beta = 1.0f,
                             .allow_tf32 = tf32},
                    .a_element = z_column,
                    .d_element = part.column};
    products.emplace_back(p, p.plan(tape, part.b));
    flops += p.traits().flops;
    reads.push_back(part.b);
    z_column += b.cols;
  }
  tape.record(
      "low_rank", std::move(reads), {sum},
      [products = std::move(products)](const Run& r) {
        for (const auto& [p, plan] : products) p.run(r, plan);
      },
      [=](Tape& t) { low_rank_gradients(t, y, z, parts, t.gradient(sum)); }, {.flops = flops});
  return sum;
}

Value dropout(Tape& tape, Value x, float p, MaskKind mask) {
  if (!tape.training() || p == 0.0f) return x;
  const Tape::Info i = tape.info(x);
  const Value y = tape.make("dropout", i.dtype, i.rows, i.cols);
  RngRef rng = tape.random(mask);
  rng.rows = 0;  // x may be the other side of the batch, whose rows are others
  const kernels::ActivationArgs args{.kind = kernels::ActivationKind::identity,
                                     .rows = i.rows,
                                     .cols = i.cols,
                                     .dtype = i.dtype,
                                     .dropout = p,
                                     .rng = rng};
  const auto bind = [args](const Run& r, Value from) {
    kernels::ActivationArgs a = args;
    a.x = r(from);
    a.rng = r(args.rng);
    return a;
  };
  tape.record(
      "dropout", {x}, {y},
      [=](const Run& r) {
        kernels::ActivationArgs a = bind(r, x);
        a.y = r(y);
        kernels::activation_forward(r.ctx, a);
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y), d_x = t.make("d_dropout", i.dtype, i.rows, i.cols);
        t.record("dropout_backward", {d_y}, {d_x}, [=](const Run& r) {
          // The slope is 1 whatever x is, so that x need not be kept.
          kernels::activation_backward(r.ctx,
                                       {.forward = bind(r, d_y), .d_y = r(d_y), .d_x = r(d_x)});
        });
        t.add_gradient(x, d_x);
      });
  return y;
}

Value wide_linear(Tape& tape, Value x, Value w) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  require_inner("wide_linear", xi, wi, wi.rows);
  const DType wide = tape.wide_type();
  const Value y = tape.make("wide_linear", wide, xi.rows, wi.rows);
  Product p = product_of(tape, cast_to(tape, "wide_x", x, wide), w, {}, y);
  p.args.allow_bf16 = false;
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
