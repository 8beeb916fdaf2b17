// SPDX-License-Identifier: Apache-2.0
#include "ops/product.h"

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/wgmma/matmul_group.h"

namespace saturate::ops {

using kernels::MatmulArgs;
using kernels::MatmulPlan;
using kernels::Transpose;

MatmulArgs Product::placed(const Tape& t) const {
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
  x.epilogue.aux = memory_of(aux);
  x.epilogue.column_sum = static_cast<float*>(memory_of(column_sum));
  x.a = static_cast<const char*>(x.a) + static_cast<size_t>(a_element) * size_of(x.ab_type);
  x.b = static_cast<const char*>(x.b) + static_cast<size_t>(b_element) * size_of(x.ab_type);
  x.d = static_cast<char*>(x.d) + static_cast<size_t>(d_element) * size_of(x.d_type);
  return x;
}

MatmulPlan Product::choose(const Tape& t) const {
  const Context where{.device = t.device(), .workspace_bytes = t.workspace_bytes()};
  return kernels::plan_matmul(where, t.parameters().kernels(), placed(t));
}

MatmulPlan Product::plan(const Tape& t, Value w) const {
  if (t.info(w).memory == nullptr && !t.parameters().allocated()) return {};
  return choose(t);
}

MatmulArgs Product::args_of(const Run& r) const {
  MatmulArgs x = args;
  x.a = r.at(a, a_element), x.b = r.at(b, b_element), x.d = r.at(d, d_element);
  x.c = r(c), x.bias = r(bias);
  x.epilogue.aux = r(aux);
  x.epilogue.column_sum = r.as<float>(column_sum);
  x.epilogue.partial = r.as<float>(partial);
  x.epilogue.later = r.folds;
  return x;
}

void Product::run(const Run& r, const MatmulPlan& plan, bool adds) const {
  MatmulArgs x = args_of(r);
  x.epilogue.add_to_column_sum = adds;
  plan.run(r.ctx, x);
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
                   .allow_tf32 = t.parameters().kernels().allow_tf32,
                   .allow_bf16 = t.parameters().kernels().allow_bf16}};
}

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
    a.later = r.folds;
    kernels::column_sum(r.ctx, a);
  });
  if (partial) t.may_fold_later(partial, {d_bias});
  t.may_be_grouped({.of = d_y, .out = [=](const Run& r) {
                      return std::pair(r.as<float>(d_bias), r.adds(first));
                    }});
}

void record_weight_gradient(Tape& t, Value x, Columns of_x, Value w, Value d_y, Columns of_y,
                            float scale) {
  bool first = false;
  const Value d_w = t.parameter_gradient(w, &first);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const DType wide = t.wide_type();
  Product add{.a = d_y,
              .b = x,
              .d = d_w,
              .args = {.m = of_y.count,
                       .n = of_x.count,
                       .k = xi.rows,
                       .lda = dy.cols,
                       .ldb = xi.cols,
                       .ldc = of_x.count,
                       .ldd = of_x.count,
                       .ta = Transpose::yes,
                       .ab_type = xi.dtype,
                       .d_type = wide,
                       .alpha = scale,
                       .beta = 1.0f,
                       .allow_tf32 = t.parameters().kernels().allow_tf32,
                       .allow_bf16 = t.parameters().kernels().allow_bf16},
              .a_element = of_y.first,
              .b_element = of_x.first};
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
  const Context where{.device = t.device(), .workspace_bytes = t.workspace_bytes()};
  if (t.device().is_cuda() && !kernels::matmul_group_fits(where, add.placed(t))) return;
  const bool whole = scale == 1.0f && of_y.first == 0 && of_y.count == dy.cols;
  t.may_be_grouped({.sizes = add.args,
                    .args = [=](const Run& r) { return (r.adds(first) ? add : set).args_of(r); },
                    .gradient = whole ? d_y : Value{}});
}

void record_weight_gradient(Tape& t, Value x, Value w, Value d_y) {
  record_weight_gradient(t, x, {0, t.info(x).cols}, w, d_y, {0, t.info(d_y).cols}, 1.0f);
}

void record_input_gradient(Tape& t, Value x, Value w, Value d_y) {
  w = t.parameter_again(w);
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
                           .allow_tf32 = t.parameters().kernels().allow_tf32,
                           .allow_bf16 = t.parameters().kernels().allow_bf16}};
  t.record(
      "linear_input_gradient", {d_y, w, before}, {d_x},
      [p, plan = p.plan(t, w)](const Run& r) { p.run(r, plan); }, {}, p.traits());
  t.set_gradient(x, d_x);
}

}  // namespace saturate::ops
