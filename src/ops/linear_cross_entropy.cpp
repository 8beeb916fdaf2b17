// SPDX-License-Identifier: Apache-2.0
#include "ops/linear_cross_entropy.h"

#include "kernels/loss/linear_cross_entropy.h"
#include "ops/product.h"

namespace saturate::ops {
namespace {

using kernels::LinearCrossEntropyArgs;

// All but the pointers.
LinearCrossEntropyArgs args_of(const Tape& t, Value x, int64_t classes, const LossSpec& s) {
  const Tape::Info xi = t.info(x);
  return {.rows = xi.rows,
          .width = xi.cols,
          .vocab = s.vocab,
          .ld = classes,
          .dtype = xi.dtype,
          .label_smoothing = s.label_smoothing,
          .grad_scale = s.grad_scale,
          .device_scale = s.device_scale};
}

struct Layer {
  Value x, w, e, scaled, factor, uniform;
};

void record_gradients(Tape& t, const Layer& l) {
  record_weight_gradient(t, l.scaled, l.w, l.e);
  const Value w = t.parameter_again(l.w);
  const Tape::Info xi = t.info(l.x), ei = t.info(l.e);
  const Value d_x = t.make("d_x", xi.dtype, xi.rows, xi.cols);
  t.record("linear_cross_entropy_backward", {l.e, w, l.factor, l.uniform}, {d_x},
           [=](const Run& r) {
             kernels::linear_cross_entropy_backward(r.ctx, {.e = r(l.e),
                                                            .w = r(w),
                                                            .factor = r(l.factor),
                                                            .uniform = r(l.uniform),
                                                            .d_x = r(d_x),
                                                            .rows = xi.rows,
                                                            .width = xi.cols,
                                                            .ld = ei.cols,
                                                            .dtype = xi.dtype});
           },
           {},
           {.flops = 2.0 * static_cast<double>(xi.rows) * static_cast<double>(xi.cols * ei.cols)});
  t.add_gradient(l.x, d_x);
}

}  // namespace

bool linear_cross_entropy_pays(const Tape& tape, Value x, ParameterId w, ParameterId bias,
                               const LossSpec& s) {
  if (!tape.training() || s.vocabulary.parts() > 1 || s.nll != nullptr) return false;
  const ParameterStore& store = tape.parameters();
  const ParameterSpec& weight = store.spec(w);
  if (weight.storage == Storage::nf4 || weight.fp8_sites >= 0 || store.block_format(w))
    return false;
  if (bias.index >= 0 && !store.spec(bias).frozen) return false;
  return static_cast<bool>(kernels::linear_cross_entropy_pays({.device = tape.device()},
                                                              args_of(tape, x, weight.rows, s)));
}

void linear_cross_entropy(Tape& tape, Value x, Value w, Value bias, const LossSpec& s) {
  const LinearCrossEntropyArgs sizes = args_of(tape, x, tape.info(w).rows, s);
  const int64_t rows = kernels::linear_cross_entropy_rows(sizes.rows, s.label_smoothing);
  const DType wide = tape.wide_type();
  Layer l{.x = x,
          .w = w,
          .e = tape.make("exponentials", sizes.dtype, rows, sizes.ld),
          .scaled = tape.make("scaled", sizes.dtype, rows, sizes.width),
          .factor = tape.make("row_factor", wide, 1, sizes.rows),
          .uniform = s.label_smoothing > 0 ? tape.make("uniform", wide, 1, sizes.width) : Value{}};
  const Value loss = tape.make("loss", wide, 1, sizes.rows),
              nll = tape.make("nll", wide, 1, sizes.rows);
  const int64_t bytes = kernels::linear_cross_entropy_scratch_bytes(tape.device(), sizes);
  const Value scratch =
      bytes > 0 ? tape.make("loss_scratch", DType::f32, 1, (bytes + 3) / 4) : Value{};
  tape.record(
      "linear_cross_entropy", {x, w, bias},
      {l.e, l.scaled, l.factor, l.uniform, loss, nll, scratch},
      [=, labels = s.labels](const Run& r) {
        LinearCrossEntropyArgs a = sizes;
        a.x = r(x), a.w = r(w), a.bias = r(bias), a.targets = r(labels);
        a.e = r(l.e), a.scaled = r(l.scaled), a.factor = r(l.factor), a.uniform = r(l.uniform);
        a.loss = r(loss), a.nll = r(nll), a.scratch = r(scratch);
        kernels::linear_cross_entropy(r.ctx, a);
      },
      [l](Tape& t) { record_gradients(t, l); },
      {.flops =
           2.0 * static_cast<double>(sizes.rows) * static_cast<double>(sizes.ld * sizes.width)});
  if (tape.training()) tape.set_gradient(l.e, l.e);  // where backward() starts
  record_loss_totals(tape, loss, nll, s, sizes.dtype);
}

}  // namespace saturate::ops
