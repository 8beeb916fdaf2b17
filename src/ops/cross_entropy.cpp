// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include "kernels/loss/cross_entropy.h"

namespace saturate::ops {

void cross_entropy(Tape& tape, Value logits, const LossSpec& s) {
  const Tape::Info li = tape.info(logits);
  const bool training = tape.training();
  const Value loss = tape.make("loss", tape.wide_type(), 1, li.rows);
  const Value nll = s.nll != nullptr ? tape.external("nll", tape.wide_type(), 1, li.rows, s.nll)
                                     : tape.make("nll", tape.wide_type(), 1, li.rows);
  const Value d_logits = tape.alias("d_logits", logits);
  tape.record("cross_entropy", {logits}, {d_logits, loss, nll}, [=](const Run& r) {
    kernels::cross_entropy(r.ctx, {.logits = r(logits),
                                   .targets = r(s.labels),
                                   .loss = r(loss),
                                   .nll = r(nll),
                                   .rows = li.rows,
                                   .vocab = s.vocab,
                                   .ld = li.cols,
                                   .dtype = li.dtype,
                                   .label_smoothing = s.label_smoothing,
                                   .grad_scale = s.grad_scale,
                                   .device_scale = s.device_scale,
                                   .write_gradient = training});
  });
  tape.record("loss_totals", {loss, nll}, {}, [=](const Run& r) {
    kernels::loss_totals(r.ctx, {.loss = r(loss),
                                 .nll = r(nll),
                                 .targets = r(s.labels),
                                 .rows = li.rows,
                                 .dtype = li.dtype,
                                 .totals = s.totals,
                                 .accumulate = true});
  });
  if (training) tape.set_gradient(logits, d_logits);
}

}  // namespace saturate::ops
