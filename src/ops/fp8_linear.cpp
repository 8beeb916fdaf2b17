// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_linear.h"

#include "kernels/fp8/fp8.h"
#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::Fp8Format;
using kernels::Fp8Site;

enum Role : int64_t { kInput, kWeight, kGradient };

Value codes(Tape& t, const char* label, int64_t rows, int64_t cols) {
  return t.make(label, DType::i32, rows, cols / 4);
}

// `transposed`, where there is one, for weights.
void record_quantize(Tape& t, Value x, Value y, Value transposed, Fp8Site* sites, Role role) {
  const Tape::Info i = t.info(x);
  t.record("fp8_quantize", {x}, {y, transposed}, [=](const Run& r) {
    kernels::fp8_quantize(r.ctx, {.x = r(x),
                                  .y = r.as<uint8_t>(y),
                                  .transposed = r.as<uint8_t>(transposed),
                                  .site = sites + role,
                                  .rows = i.rows,
                                  .cols = i.cols,
                                  .dtype = i.dtype,
                                  .format = kernels::fp8_format_of(role)});
  });
}

// Operands in codes; d (m, n) = a (m, k) b^T.
struct Fp8Product {
  Value a, b, c, d, bias;
  kernels::Fp8MatmulArgs args;

  void record(Tape& t, const char* name, Tape::BackwardFn backward = {}) const {
    const auto floats = static_cast<int64_t>(
        kernels::fp8_matmul_scratch_bytes(t.device(), args.m, args.n, args.k) / sizeof(float));
    const Value scratch = floats > 0 ? t.make("decoded", DType::f32, 1, floats) : Value{};
    t.record(name, {a, b, c, bias}, {d, scratch},
             [p = *this, scratch](const Run& r) {
               kernels::Fp8MatmulArgs x = p.args;
               x.a = r.as<uint8_t>(p.a), x.b = r.as<uint8_t>(p.b);
               x.c = r(p.c), x.d = r(p.d), x.bias = r(p.bias), x.scratch = r(scratch);
               kernels::fp8_matmul(r.ctx, x);
             },
             std::move(backward),
             {.flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k)});
  }
};

void record_gradients(Tape& t, Value x, Value w, Value w_transposed, Value bias, Value d_y,
                      Fp8Site* sites) {
  if (bias) record_bias_gradient(t, d_y, bias);
  record_weight_gradient(t, x, w, d_y);
  const Value before = t.gradient(x);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const Value d_y8 = codes(t, "d_y8", dy.rows, dy.cols);
  record_quantize(t, d_y, d_y8, {}, sites, kGradient);
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  Fp8Product{.a = d_y8,
             .b = w_transposed,
             .c = before,
             .d = d_x,
             .bias = {},
             .args = {.a_site = sites + kGradient,
                      .b_site = sites + kWeight,
                      .m = xi.rows,
                      .n = xi.cols,
                      .k = dy.cols,
                      .dtype = xi.dtype,
                      .a_format = Fp8Format::e5m2}}
      .record(t, "linear_input_gradient");
  t.set_gradient(x, d_x);
}

}  // namespace

bool multiplies_in_fp8(const Tape& tape, Value w) {
  const int32_t parameter = tape.info(w).parameter;
  return tape.training() && parameter >= 0 && tape.parameters().spec({parameter}).fp8_sites >= 0;
}

Value fp8_linear(Tape& tape, Value x, Value w, Value bias) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  Fp8Site* const sites = tape.parameters().fp8_sites({wi.parameter});
  const Value x8 = codes(tape, "x8", xi.rows, xi.cols), w8 = codes(tape, "w8", wi.rows, wi.cols),
              w8_transposed = codes(tape, "w8_transposed", wi.cols, wi.rows);
  record_quantize(tape, x, x8, {}, sites, kInput);
  record_quantize(tape, w, w8, w8_transposed, sites, kWeight);
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  Fp8Product{.a = x8,
             .b = w8,
             .c = {},
             .d = y,
             .bias = bias,
             .args = {.a_site = sites + kInput,
                      .b_site = sites + kWeight,
                      .m = xi.rows,
                      .n = wi.rows,
                      .k = xi.cols,
                      .dtype = xi.dtype,
                      .fast = true}}
      .record(tape, "linear", [=](Tape& t) {
        record_gradients(t, x, w, w8_transposed, t.bias_is_summed(y) ? Value{} : bias,
                         t.gradient(y), sites);
      });
  tape.sums_to_bias(y, bias);
  return y;
}

}  // namespace saturate::ops
