// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_linear.h"

#include "ops/fp8_product.h"
#include "ops/product.h"

namespace saturate::ops {

using kernels::Fp8Site;

bool multiplies_in_fp8(const Tape& tape, Value w) {
  const int32_t parameter = tape.info(w).parameter;
  return tape.training() && parameter >= 0 && tape.parameters().spec({parameter}).fp8_sites >= 0;
}

Value fp8_linear(Tape& tape, Value x, Value w, Value bias) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  Fp8Site* const sites = tape.parameters().fp8_sites({wi.parameter});
  const bool all = fp8_weight_gradient_pays(tape, w, xi.rows);
  const Fp8Operand x8 =
      fp8_round(tape, x, {.label = "x8", .sites = sites, .role = kFp8Input, .transposed = all});
  const Fp8Operand w8 = fp8_round_weight(tape, w, sites);
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  record_fp8_product(tape, x8, w8, bias, y, sites, [=](Tape& t) {
    const Value d_y = t.gradient(y), before = t.gradient(x);
    const Fp8Operand d_y8 = fp8_round(t, d_y,
                                      {.label = "d_y8",
                                       .sites = sites,
                                       .role = kFp8Gradient,
                                       .transposed = all,
                                       .bias = t.bias_is_summed(y) ? Value{} : bias});
    if (all) {
      record_fp8_weight_gradient(t, x8, w, d_y8, sites);
    } else {
      record_weight_gradient(t, x, w, d_y);
    }
    const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
    record_fp8_input_gradient(t, d_y8, w8, before, d_x, sites);
    t.set_gradient(x, d_x);
  });
  tape.sums_to_bias(y, bias);
  return y;
}

}  // namespace saturate::ops
