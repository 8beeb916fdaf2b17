// SPDX-License-Identifier: Apache-2.0
#include "ops/feed_forward.h"

#include <fmt/format.h>

#include "ops/block_linear.h"
#include "ops/fp8_feed_forward.h"
#include "ops/fp8_linear.h"
#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::ActivationKind;
using kernels::EpilogueKind;

// Sums of the gradient's columns over runs of rows are kept until the last of a backward pass, where one launch adds
// all, up to this size: adding larger ones takes longer than a launch, and a step would need their memory.
constexpr int64_t kKeptSumsBytes = 1 << 20;
constexpr int64_t kWord = 64;  // bits of relu's slopes

struct Layer {
  Value x;
  Projection in, out;
  ActivationKind kind;
  // What the activation is given, which backward reads, and its result: the same value where the result
  // is all that is kept.
  Value given = {}, result = {};
  bool slopes = false;  // given holds the activation's slopes instead
  bool bits = false;    // given holds relu's slopes, a bit for each
  bool sums = false;    // the gradient of in.bias comes with that of `given`
};

// result = f(x w1^T + bias); `given`, unless it is the result, gets what f was given, or its slopes.
Product activated(const Tape& t, const Layer& l, Value given, Value result) {
  Product p = product_of(t, l.x, l.in.weight, l.in.bias, result);
  p.args.epilogue = {.kind = EpilogueKind::activation, .activation = l.kind};
  if (given != result) {
    p.aux = given;
    p.args.epilogue.ld_aux = l.bits ? p.args.n / kWord : p.args.n;
    p.args.epilogue.slopes = l.slopes;
    p.args.epilogue.bits = l.bits;
  }
  return p;
}

// d_given = (d_y w2) f'(given)
Product differentiated(const Tape& t, const Layer& l, Value given, Value d_y, Value d_given,
                       Value column_sum, Value partial = {}) {
  const Tape::Info xi = t.info(l.x), w = t.info(l.out.weight);
  return {.a = d_y,
          .b = l.out.weight,
          .d = d_given,
          .args = {.m = xi.rows,
                   .n = w.cols,
                   .k = w.rows,
                   .lda = w.rows,
                   .ldb = w.cols,
                   .ldc = w.cols,
                   .ldd = w.cols,
                   .ab_type = xi.dtype,
                   .d_type = xi.dtype,
                   .allow_tf32 = t.parameters().kernels().allow_tf32,
                   .allow_bf16 = t.parameters().kernels().allow_bf16,
                   .epilogue = {.kind = EpilogueKind::derivative,
                                .activation = l.kind,
                                .ld_aux = l.bits ? w.cols / kWord : w.cols,
                                .slopes = l.slopes,
                                .bits = l.bits}},
          .aux = given,
          .column_sum = column_sum,
          .partial = partial};
}

// Where such sums are kept, if they are.
Value kept_sums(Tape& t, const Tape::Info& d_given) {
  constexpr int64_t kRows = kernels::Epilogue::kSummedRows;
  const int64_t values = (d_given.rows + kRows - 1) / kRows * d_given.cols;
  if (values * int64_t{sizeof(float)} > kKeptSumsBytes || !t.device().is_cuda()) return {};
  return t.make("bias_partial", DType::f32, 1, values);
}

// Of the first product. The gradient of `given` was set by the second one's.
void record_first_gradients(Tape& t, const Layer& l) {
  const Value d_given = t.gradient(l.given);
  if (l.in.bias && !l.sums) record_bias_gradient(t, d_given, l.in.bias);
  record_weight_gradient(t, l.x, l.in.weight, d_given);
  record_input_gradient(t, l.x, l.in.weight, d_given);
}

void record_second_gradients(Tape& t, const Layer& l, Value y) {
  const Value d_y = t.gradient(y);
  if (l.out.bias && !t.bias_is_summed(y)) record_bias_gradient(t, d_y, l.out.bias);
  record_weight_gradient(t, l.result, l.out.weight, d_y);
  const Tape::Info g = t.info(l.result);  // as that of what the activation was given
  const Value d_given = t.make("d_activation", g.dtype, g.rows, g.cols);
  bool first = false;
  const Value d_bias = l.sums ? t.parameter_gradient(l.in.bias, &first) : Value{};
  const Value partial = l.sums ? kept_sums(t, g) : Value{};
  const Product p = differentiated(t, l, l.given, d_y, d_given, d_bias, partial);
  t.record(
      "linear_input_gradient", {d_y, l.out.weight, l.given}, {d_given, d_bias, partial},
      [p, first, plan = p.plan(t, l.out.weight)](const Run& r) { p.run(r, plan, r.adds(first)); },
      {}, p.traits());
  if (partial) t.may_fold_later(partial, {d_bias});
  t.set_gradient(l.given, d_given);
}

void record_activation(Tape& t, const Layer& l) {
  const Tape::Info i = t.info(l.given);
  t.record("activation", {l.given}, {l.result}, [=](const Run& r) {
    kernels::activation_forward(r.ctx, {.kind = l.kind,
                                        .x = r(l.given),
                                        .y = r(l.result),
                                        .rows = i.rows,
                                        .cols = i.cols,
                                        .dtype = i.dtype,
                                        .rng = {}});
  });
}

}  // namespace

Value feed_forward(Tape& tape, Value x, const Projection& in, const Projection& out,
                   ActivationKind kind) {
  const Tape::Info xi = tape.info(x), w1 = tape.info(in.weight), w2 = tape.info(out.weight);
  if (xi.cols != w1.cols || w1.rows != w2.cols) {
    throw Error(Errc::invalid_argument, "feed_forward",
                fmt::format("x is ({}, {}), w1 ({}, {}), w2 ({}, {}): inner sizes differ", xi.rows,
                            xi.cols, w1.rows, w1.cols, w2.rows, w2.cols));
  }
  const bool fp8 = multiplies_in_fp8(tape, in.weight);
  if (fp8 != multiplies_in_fp8(tape, out.weight)) return {};
  if (block_format_of(tape, in.weight) || block_format_of(tape, out.weight)) return {};
  if (fp8) return fp8_feed_forward(tape, x, in, out, kind);
  Layer l{.x = x, .in = in, .out = out, .kind = kind};
  // Kernels are chosen by sizes, types and alignment, of which x has those of any other value.
  const auto pays = [&](const Product& p) { return p.choose(tape).epilogue_pays; };
  // relu's result says its slope too, and bits say it with fewer bytes; of another function slopes are kept beside its result, where a kernel is faster.
  const bool relu = kind == ActivationKind::relu;
  const Value other = in.weight;  // any value but x
  l.bits = relu && tape.device().is_cuda() && w1.rows % kWord == 0;
  l.bits =
      l.bits && pays(activated(tape, l, other, x)) && pays(differentiated(tape, l, x, x, x, {}));
  l.slopes = !relu && tape.device().is_cuda();
  bool at_once = l.bits || pays(activated(tape, l, relu ? x : other, x));
  l.slopes = l.slopes && at_once && pays(differentiated(tape, l, x, x, x, {}));
  at_once = at_once && (relu || l.slopes);
  l.sums =
      in.bias && tape.wide_type() == DType::f32 && pays(differentiated(tape, l, x, x, x, in.bias));
  if (!l.sums && !pays(differentiated(tape, l, x, x, x, {}))) return {};
  l.result = tape.make("activation", xi.dtype, xi.rows, w1.rows);
  l.given = l.bits            ? tape.make("relu_bits", DType::i32, xi.rows, w1.rows / 32)
            : at_once && relu ? l.result
                              : tape.make("linear", xi.dtype, xi.rows, w1.rows);
  const Product first = at_once ? activated(tape, l, l.given, l.result)
                                : product_of(tape, x, in.weight, in.bias, l.given);
  tape.record(
      at_once ? "linear_activation" : "linear", {x, in.weight, in.bias},
      {l.given, l.slopes || l.bits ? l.result : Value{}},
      [first, plan = first.plan(tape, in.weight)](const Run& r) { first.run(r, plan); },
      [l](Tape& t) { record_first_gradients(t, l); }, first.traits());
  if (!at_once) record_activation(tape, l);
  const Value y = tape.make("linear", xi.dtype, xi.rows, w2.rows);
  const Product second = product_of(tape, l.result, out.weight, out.bias, y);
  tape.record(
      "linear", {l.result, out.weight, out.bias}, {y},
      [second, plan = second.plan(tape, out.weight)](const Run& r) { second.run(r, plan); },
      [l, y](Tape& t) { record_second_gradients(t, l, y); }, second.traits());
  tape.sums_to_bias(y, out.bias);
  return y;
}

}  // namespace saturate::ops
