// SPDX-License-Identifier: Apache-2.0
#include "ops/block_linear.h"

#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::BlockFormat;
using kernels::BlockTensor;

// A rounded matrix of rows by cols.
struct Rounded {
  Value codes, scales;
};
Rounded make_rounded(Tape& t, const char* codes, const char* scales, BlockFormat f, int64_t rows,
                     int64_t cols) {
  const auto bytes = [&](const char* label, int64_t count) {
    return t.make(label, DType::i32, 1, count / 4);
  };
  return {bytes(codes, kernels::block_code_bytes(f, rows, cols)),
          bytes(scales, kernels::block_scale_bytes(f, rows, cols))};
}
Value make_tensor(Tape& t, BlockFormat f) {
  if (f != BlockFormat::nvfp4) return {};
  return t.make("tensor_scale", DType::f32, 1, sizeof(BlockTensor) / sizeof(float));
}

// `across`: of the transposed matrix, where there is one.
void record_quantize(Tape& t, Value x, const Rounded& along, const Rounded& across, Value tensor,
                     BlockFormat f) {
  const Tape::Info i = t.info(x);
  t.record("block_quantize", {x}, {along.codes, along.scales, across.codes, across.scales, tensor},
           [=](const Run& r) {
             kernels::block_quantize(r.ctx, {.x = r(x),
                                             .codes = r.as<uint8_t>(along.codes),
                                             .scales = r.as<uint8_t>(along.scales),
                                             .transposed = r.as<uint8_t>(across.codes),
                                             .transposed_scales = r.as<uint8_t>(across.scales),
                                             .tensor = r.as<BlockTensor>(tensor),
                                             .rows = i.rows,
                                             .cols = i.cols,
                                             .dtype = i.dtype,
                                             .format = f});
           });
}

// d (m, n) = a (m, k) b^T.
struct BlockProduct {
  Rounded a, b;
  Value a_tensor, b_tensor, c, d, bias;
  BlockFormat format;
  kernels::BlockMatmulArgs args;

  void record(Tape& t, const char* name, Tape::BackwardFn backward = {}) const {
    const auto words = static_cast<int64_t>(
        kernels::block_matmul_scratch_bytes(t.device(), args.m, args.n, args.k) / sizeof(float));
    const Value scratch = t.make("decoded", DType::f32, 1, words);
    t.record(name, {a.codes, a.scales, a_tensor, b.codes, b.scales, b_tensor, c, bias},
             {d, scratch},
             [p = *this, scratch](const Run& r) {
               const auto operand = [&](const Rounded& x, Value tensor) {
                 return kernels::BlockOperand{r.as<uint8_t>(x.codes), r.as<uint8_t>(x.scales),
                                              r.as<BlockTensor>(tensor), p.format};
               };
               kernels::BlockMatmulArgs x = p.args;
               x.a = operand(p.a, p.a_tensor), x.b = operand(p.b, p.b_tensor);
               x.c = r(p.c), x.d = r(p.d), x.bias = r(p.bias), x.scratch = r(scratch);
               kernels::block_matmul(r.ctx, x);
             },
             std::move(backward),
             {.flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k)});
  }
};

void record_gradients(Tape& t, Value x, Value w, const Rounded& w_across, Value w_tensor,
                      Value bias, Value d_y, BlockFormat f) {
  if (bias) record_bias_gradient(t, d_y, bias);
  record_weight_gradient(t, x, w, d_y);
  const Value before = t.gradient(x);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const Rounded rounded = make_rounded(t, "d_y_codes", "d_y_scales", f, dy.rows, dy.cols);
  const Value tensor = make_tensor(t, f);
  record_quantize(t, d_y, rounded, {}, tensor, f);
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  BlockProduct{.a = rounded,
               .b = w_across,
               .a_tensor = tensor,
               .b_tensor = w_tensor,
               .c = before,
               .d = d_x,
               .bias = {},
               .format = f,
               .args = {.m = xi.rows, .n = xi.cols, .k = dy.cols, .dtype = xi.dtype}}
      .record(t, "linear_input_gradient");
  t.set_gradient(x, d_x);
}

}  // namespace

std::optional<BlockFormat> block_format_of(const Tape& tape, Value w) {
  const int32_t parameter = tape.info(w).parameter;
  if (!tape.training() || parameter < 0) return {};
  return tape.parameters().block_format({parameter});
}

Value block_linear(Tape& tape, Value x, Value w, Value bias, BlockFormat f) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  const Rounded of_x = make_rounded(tape, "x_codes", "x_scales", f, xi.rows, xi.cols),
                of_w = make_rounded(tape, "w_codes", "w_scales", f, wi.rows, wi.cols),
                across =
                    make_rounded(tape, "w_codes_across", "w_scales_across", f, wi.cols, wi.rows);
  const Value x_tensor = make_tensor(tape, f), w_tensor = make_tensor(tape, f);
  record_quantize(tape, x, of_x, {}, x_tensor, f);
  record_quantize(tape, w, of_w, across, w_tensor, f);
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  BlockProduct{.a = of_x,
               .b = of_w,
               .a_tensor = x_tensor,
               .b_tensor = w_tensor,
               .c = {},
               .d = y,
               .bias = bias,
               .format = f,
               .args = {.m = xi.rows, .n = wi.rows, .k = xi.cols, .dtype = xi.dtype}}
      .record(tape, "linear", [=](Tape& t) {
        record_gradients(t, x, w, across, w_tensor, t.bias_is_summed(y) ? Value{} : bias,
                         t.gradient(y), f);
      });
  tape.sums_to_bias(y, bias);
  return y;
}

}  // namespace saturate::ops
