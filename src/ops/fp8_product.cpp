// SPDX-License-Identifier: Apache-2.0
#include "ops/fp8_product.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace saturate::ops {
namespace {

using kernels::Fp8Format;
using kernels::Fp8Prepare;

// Sums of more terms of an input's gradient are kept in fp32. Sums in the 14 bits that tensor cores keep err by
// some 2^-13 of the largest partial sum, and E5M2 rounds each term by up to 2^-3.
constexpr int64_t kFastTerms = 2048;

Value codes(Tape& t, const char* label, int64_t rows, int64_t cols) {
  return t.make(label, DType::i32, rows, cols / 4);
}

// Operands in codes; d (m, n) = a (m, k) b^T.
struct Product {
  Value a, b, c = {}, d, bias = {};
  kernels::Fp8MatmulArgs args;

  Value scratch(Tape& t) const {
    const auto floats = static_cast<int64_t>(
        kernels::fp8_matmul_scratch_bytes(t.device(), args.m, args.n, args.k) / sizeof(float));
    return floats > 0 ? t.make("decoded", DType::f32, 1, floats) : Value{};
  }
  void run(const Run& r, Value scratch, bool adds = false) const {
    kernels::Fp8MatmulArgs x = args;
    x.a = r.as<uint8_t>(a), x.b = r.as<uint8_t>(b);
    x.c = adds ? r(d) : r(c), x.d = r(d), x.bias = r(bias), x.scratch = r(scratch);
    kernels::fp8_matmul(r.ctx, x);
  }
  OperationTraits traits() const {
    return {.flops = 2.0 * static_cast<double>(args.m) * static_cast<double>(args.n * args.k)};
  }
  void record(Tape& t, const char* name, Tape::BackwardFn backward = {}) const {
    const Value s = scratch(t);
    t.record(
        name, {a, b, c, bias}, {d, s}, [p = *this, s](const Run& r) { p.run(r, s); },
        std::move(backward), traits());
  }
};

}  // namespace

Fp8Operand fp8_round(Tape& t, Value x, const Fp8Rounding& how) {
  const Tape::Info i = t.info(x);
  const Fp8Operand y{
      .codes = codes(t, how.label, i.rows, i.cols),
      .transposed = how.transposed ? codes(t, "transposed", i.cols, i.rows) : Value{}};
  bool first = false;
  const Value d_bias = how.bias ? t.parameter_gradient(how.bias, &first) : Value{};
  const auto bytes = how.bias ? kernels::fp8_partial_bytes(t.device(), i.rows, i.cols) : 0;
  const Value partial =
      bytes > 0 ? t.make("bias_partial", DType::f32, 1, static_cast<int64_t>(bytes / 4)) : Value{};
  const auto run = [=](const Run& r) {
    kernels::fp8_quantize(r.ctx, {.x = r(x),
                                  .y = r.as<uint8_t>(y.codes),
                                  .transposed = r.as<uint8_t>(y.transposed),
                                  .site = how.sites + how.role,
                                  .rows = i.rows,
                                  .cols = i.cols,
                                  .dtype = i.dtype,
                                  .format = kernels::fp8_format_of(how.role),
                                  .prepare = how.prepare,
                                  .activation = how.activation,
                                  .given = r(how.given),
                                  .copy = r(how.copy),
                                  .column_sum = r.as<float>(d_bias),
                                  .partial = r.as<float>(partial),
                                  .add_to_column_sum = r.adds(first),
                                  .later = r.folds,
                                  .scale_known = r.scales_known()});
  };
  t.record("fp8_quantize", {x, how.given}, {y.codes, y.transposed, how.copy, d_bias, partial}, run);
  if (partial) t.may_fold_later(partial, {d_bias});
  return y;
}

// What one operation rounds, in the order in which layers asked for it.
struct WeightsInFp8 {
  struct Matrix {
    Value w;
    Fp8Operand operand;
    kernels::Fp8Site* site;
    int64_t rows, cols;
  };
  int32_t operation = -1;
  DType dtype = DType::f32;
  std::vector<Matrix> matrices = {};

  void run(const Run& r) const {
    std::vector<kernels::Fp8WeightArgs> all;
    for (const Matrix& m : matrices)
      all.push_back({.x = r(m.w),
                     .y = r.as<uint8_t>(m.operand.codes),
                     .transposed = r.as<uint8_t>(m.operand.transposed),
                     .site = m.site,
                     .rows = m.rows,
                     .cols = m.cols});
    if (r.scales_known()) return kernels::fp8_quantize_weights(r.ctx, {all, dtype});
    for (const kernels::Fp8WeightArgs& m : all)
      kernels::fp8_quantize(r.ctx, {.x = m.x,
                                    .y = m.y,
                                    .transposed = m.transposed,
                                    .site = m.site,
                                    .rows = m.rows,
                                    .cols = m.cols,
                                    .dtype = dtype});
  }
};

void begin_weights_in_fp8(Tape& t) {
  const auto& specs = t.parameters().specs();
  if (!t.training() || std::ranges::none_of(specs, [](const auto& s) { return s.fp8_sites >= 0; }))
    return;
  t.weights_in_fp8 = std::make_shared<WeightsInFp8>();
  t.weights_in_fp8->operation = static_cast<int32_t>(t.operations());
  t.weights_in_fp8->dtype = t.compute_type();
  t.record("fp8_quantize_weights", {}, {},
           [weights = t.weights_in_fp8](const Run& r) { weights->run(r); });
}

Fp8Operand fp8_round_weight(Tape& t, Value w, kernels::Fp8Site* sites) {
  // So many that a launch is nothing beside its work. The next begin where their layers are, so that no codes
  // are made long before they are read; in a region they would be made again.
  constexpr size_t kAtOnce = 24;
  if (t.weights_in_fp8 != nullptr && t.weights_in_fp8->matrices.size() >= kAtOnce && !t.in_region())
    begin_weights_in_fp8(t);
  const Tape::Info i = t.info(w);
  if (t.weights_in_fp8 == nullptr || !i.external)
    return fp8_round(t, w, {.label = "w8", .sites = sites, .role = kFp8Weight, .transposed = true});
  const Fp8Operand y{.codes = codes(t, "w8", i.rows, i.cols),
                     .transposed = codes(t, "transposed", i.cols, i.rows)};
  t.weights_in_fp8->matrices.push_back({w, y, sites + kFp8Weight, i.rows, i.cols});
  t.extend(t.weights_in_fp8->operation, w, {y.codes, y.transposed});
  return y;
}

void record_fp8_product(Tape& t, const Fp8Operand& x, const Fp8Operand& w, Value bias, Value y,
                        kernels::Fp8Site* sites, Tape::BackwardFn backward) {
  const Tape::Info xi = t.info(x.codes), yi = t.info(y);
  Product{.a = x.codes,
          .b = w.codes,
          .d = y,
          .bias = bias,
          .args = {.a_site = sites + kFp8Input,
                   .b_site = sites + kFp8Weight,
                   .m = yi.rows,
                   .n = yi.cols,
                   .k = xi.cols * 4,
                   .dtype = yi.dtype,
                   .fast = true}}
      .record(t, "linear", std::move(backward));
}

void record_fp8_input_gradient(Tape& t, const Fp8Operand& d_y, const Fp8Operand& w, Value before,
                               Value d_x, kernels::Fp8Site* sites) {
  const Tape::Info xi = t.info(d_x), dy = t.info(d_y.codes);
  Product{.a = d_y.codes,
          .b = w.transposed,
          .c = before,
          .d = d_x,
          .args = {.a_site = sites + kFp8Gradient,
                   .b_site = sites + kFp8Weight,
                   .m = xi.rows,
                   .n = xi.cols,
                   .k = dy.cols * 4,
                   .dtype = xi.dtype,
                   .a_format = Fp8Format::e5m2,
                   .fast = dy.cols * 4 <= kFastTerms}}
      .record(t, "linear_input_gradient");
}

bool fp8_weight_gradient_pays(const Tape& t, Value w, int64_t rows) {
  // Tiles of 128 x 256: with an eighth of an H200's multiprocessors at work codes still win, by cuBLASLt.
  constexpr int64_t kLeastElements = int64_t{16} * 128 * 256;
  const Tape::Info i = t.info(w);
  return rows % 16 == 0 && i.rows * i.cols >= kLeastElements && t.wide_type() == DType::f32;
}

void record_fp8_weight_gradient(Tape& t, const Fp8Operand& x, Value w, const Fp8Operand& d_y,
                                kernels::Fp8Site* sites) {
  bool first = false;
  const Value d_w = t.parameter_gradient(w, &first);
  const Tape::Info wi = t.info(w), xi = t.info(x.transposed);
  const Product p{.a = d_y.transposed,
                  .b = x.transposed,
                  .d = d_w,
                  .args = {.a_site = sites + kFp8Gradient,
                           .b_site = sites + kFp8Input,
                           .m = wi.rows,
                           .n = wi.cols,
                           .k = xi.cols * 4,
                           .dtype = DType::f32,
                           .a_format = Fp8Format::e5m2}};
  const Value s = p.scratch(t);
  t.record_parameter_gradient(
      "linear_weight_gradient", {p.a, p.b}, {d_w, s},
      [=](const Run& r) { p.run(r, s, r.adds(first)); }, p.traits());
}

}  // namespace saturate::ops
