// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_feed_forward.h"

#include "ops/fp8_product.h"
#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::Fp8Prepare;
using kernels::Fp8Site;

struct Layer {
  Value x;
  Projection in, out;
  kernels::ActivationKind kind;
  Fp8Site *of_in, *of_out;
  bool in_all, out_all;  // whether weight gradients are in 8 bits too
  Fp8Operand x8 = {}, w1 = {}, w2 = {}, result8 = {};
  Value given = {};   // what f is given
  Value result = {};  // f of it, where a weight gradient reads that
};

void record_gradients(Tape& t, const Layer& l, Value y) {
  const Tape::Info xi = t.info(l.x), g = t.info(l.given);
  const Value d_y = t.gradient(y), before = t.gradient(l.x);
  const Fp8Operand d_y8 = fp8_round(t, d_y,
                                    {.label = "d_y8",
                                     .sites = l.of_out,
                                     .role = kFp8Gradient,
                                     .transposed = l.out_all,
                                     .bias = t.bias_is_summed(y) ? Value{} : l.out.bias});
  if (l.out_all) {
    record_fp8_weight_gradient(t, l.result8, l.out.weight, d_y8, l.of_out);
  } else {
    record_weight_gradient(t, l.result, l.out.weight, d_y);
  }
  const Value d_result = t.make("d_activation", g.dtype, g.rows, g.cols);
  record_fp8_input_gradient(t, d_y8, l.w2, {}, d_result, l.of_out);
  const Value d_given = l.in_all ? Value{} : t.make("d_linear", g.dtype, g.rows, g.cols);
  const Fp8Operand d_given8 = fp8_round(t, d_result,
                                        {.label = "d_y8",
                                         .sites = l.of_in,
                                         .role = kFp8Gradient,
                                         .transposed = l.in_all,
                                         .prepare = Fp8Prepare::slope,
                                         .activation = l.kind,
                                         .given = l.given,
                                         .copy = d_given,
                                         .bias = l.in.bias});
  if (l.in_all) {
    record_fp8_weight_gradient(t, l.x8, l.in.weight, d_given8, l.of_in);
  } else {
    record_weight_gradient(t, l.x, l.in.weight, d_given);
  }
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  record_fp8_input_gradient(t, d_given8, l.w1, before, d_x, l.of_in);
  t.set_gradient(l.x, d_x);
}

}  // namespace

Value fp8_feed_forward(Tape& tape, Value x, const Projection& in, const Projection& out,
                       kernels::ActivationKind kind) {
  const Tape::Info xi = tape.info(x), w1 = tape.info(in.weight), w2 = tape.info(out.weight);
  const ParameterStore& store = tape.parameters();
  Layer l{.x = x,
          .in = in,
          .out = out,
          .kind = kind,
          .of_in = store.fp8_sites({w1.parameter}),
          .of_out = store.fp8_sites({w2.parameter}),
          .in_all = fp8_weight_gradient_pays(tape, in.weight, xi.rows),
          .out_all = fp8_weight_gradient_pays(tape, out.weight, xi.rows)};
  l.x8 = fp8_round(tape, x,
                   {.label = "x8", .sites = l.of_in, .role = kFp8Input, .transposed = l.in_all});
  l.w1 = fp8_round_weight(tape, in.weight, l.of_in);
  l.given = tape.make("linear", xi.dtype, xi.rows, w1.rows);
  record_fp8_product(tape, l.x8, l.w1, in.bias, l.given, l.of_in);
  if (!l.out_all) l.result = tape.make("activation", xi.dtype, xi.rows, w1.rows);
  l.result8 = fp8_round(tape, l.given,
                        {.label = "x8",
                         .sites = l.of_out,
                         .role = kFp8Input,
                         .transposed = l.out_all,
                         .prepare = Fp8Prepare::activation,
                         .activation = kind,
                         .copy = l.result});
  l.w2 = fp8_round_weight(tape, out.weight, l.of_out);
  const Value y = tape.make("linear", xi.dtype, xi.rows, w2.rows);
  record_fp8_product(tape, l.result8, l.w2, out.bias, y, l.of_out,
                     [=](Tape& t) { record_gradients(t, l, y); });
  tape.sums_to_bias(y, out.bias);
  return y;
}

}  // namespace saturate::ops
