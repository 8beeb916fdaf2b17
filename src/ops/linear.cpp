// SPDX-License-Identifier: Apache-2.0
#include "ops/linear.h"

#include <fmt/format.h>

#include <atomic>

#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/matmul.h"

namespace saturate::ops {
namespace {

std::atomic<bool> g_tf32{false};

using kernels::MatmulArgs;
using kernels::Transpose;

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
  t.record_parameter_gradient("linear_weight_gradient", {x, d_y}, {d_w}, [=](const Run& r) {
    kernels::matmul(r.ctx, {.a = r(d_y),
                            .b = r(x),
                            .d = r(d_w),
                            .m = dy.cols,
                            .n = xi.cols,
                            .k = xi.rows,
                            .lda = dy.cols,
                            .ldb = xi.cols,
                            .ldc = xi.cols,
                            .ldd = xi.cols,
                            .ta = Transpose::yes,
                            .ab_type = xi.dtype,
                            .d_type = wide,
                            .beta = r.adds(first) ? 1.0f : 0.0f,
                            .allow_tf32 = g_tf32});
  });
}

void record_input_gradient(Tape& t, Value x, Value w, Value d_y) {
  const Value before = t.gradient(x);
  const Tape::Info xi = t.info(x), dy = t.info(d_y);
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  t.record("linear_input_gradient", {d_y, w, before}, {d_x}, [=](const Run& r) {
    kernels::matmul(r.ctx, {.a = r(d_y),
                            .b = r(w),
                            .c = r(before),
                            .d = r(d_x),
                            .m = xi.rows,
                            .n = xi.cols,
                            .k = dy.cols,
                            .lda = dy.cols,
                            .ldb = xi.cols,
                            .ldc = xi.cols,
                            .ldd = xi.cols,
                            .ab_type = xi.dtype,
                            .d_type = xi.dtype,
                            .beta = before ? 1.0f : 0.0f,
                            .allow_tf32 = g_tf32});
  });
  t.set_gradient(x, d_x);
}

}  // namespace

void allow_tf32(bool allow) noexcept { g_tf32 = allow; }

Value linear(Tape& tape, Value x, Value w, Value bias) {
  const Tape::Info xi = tape.info(x), wi = tape.info(w);
  if (xi.cols != wi.cols || (bias && tape.info(bias).cols != wi.rows)) {
    throw Error(Errc::invalid_argument, "linear",
                fmt::format("x is ({}, {}), w ({}, {}), bias ({}): inner sizes or bias differ",
                            xi.rows, xi.cols, wi.rows, wi.cols, bias ? tape.info(bias).cols : 0));
  }
  const Value y = tape.make("linear", xi.dtype, xi.rows, wi.rows);
  tape.record(
      "linear", {x, w, bias}, {y},
      [=](const Run& r) {
        kernels::matmul(r.ctx, {.a = r(x),
                                .b = r(w),
                                .d = r(y),
                                .bias = r(bias),
                                .m = xi.rows,
                                .n = wi.rows,
                                .k = xi.cols,
                                .lda = xi.cols,
                                .ldb = wi.cols,
                                .ldc = wi.rows,
                                .ldd = wi.rows,
                                .tb = Transpose::yes,
                                .ab_type = xi.dtype,
                                .d_type = xi.dtype,
                                .allow_tf32 = g_tf32});
      },
      [=](Tape& t) {
        const Value d_y = t.gradient(y);
        if (bias) record_bias_gradient(t, d_y, bias);
        record_weight_gradient(t, x, w, d_y);
        record_input_gradient(t, x, w, d_y);
      });
  return y;
}

}  // namespace saturate::ops
