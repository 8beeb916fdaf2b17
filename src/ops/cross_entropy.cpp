// SPDX-License-Identifier: Apache-2.0
#include "ops/cross_entropy.h"

#include "kernels/loss/cross_entropy.h"

namespace saturate::ops {

namespace {

// Of this rank's columns, then of all ranks': (ranks * rows, 4).
Value record_statistics(Tape& tape, Value logits, const LossSpec& s, int64_t first_class) {
  const Tape::Info li = tape.info(logits);
  const Value statistics = tape.make("loss_statistics", tape.wide_type(), li.rows, 4);
  tape.record("loss_statistics", {logits}, {statistics},
              [=, labels = s.labels, vocab = s.vocab](const Run& r) {
                kernels::loss_statistics(r.ctx, {.logits = r(logits),
                                                 .targets = r(labels),
                                                 .statistics = r(statistics),
                                                 .rows = li.rows,
                                                 .vocab = vocab,
                                                 .ld = li.cols,
                                                 .first_class = first_class,
                                                 .dtype = li.dtype});
              });
  return gather_rows(tape, s.vocabulary, statistics);
}

}  // namespace

void cross_entropy(Tape& tape, Value logits, const LossSpec& s) {
  const Tape::Info li = tape.info(logits);
  const bool training = tape.training();
  const Value loss = tape.make("loss", tape.wide_type(), 1, li.rows);
  const Value nll = s.nll != nullptr ? tape.external("nll", tape.wide_type(), 1, li.rows, s.nll)
                                     : tape.make("nll", tape.wide_type(), 1, li.rows);
  const int parts = s.vocabulary.parts();
  const int64_t first_class = s.vocabulary.part() * li.cols;
  const Value statistics = parts > 1 ? record_statistics(tape, logits, s, first_class) : Value{};
  const Value d_logits = tape.alias("d_logits", logits);
  tape.record("cross_entropy", {logits, statistics}, {d_logits, loss, nll}, [=](const Run& r) {
    const kernels::CrossEntropyArgs row{.logits = r(logits),
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
                                        .write_gradient = training};
    if (parts == 1) return kernels::cross_entropy(r.ctx, row);
    kernels::cross_entropy_finish(
        r.ctx,
        {.forward = row, .statistics = r(statistics), .parts = parts, .first_class = first_class});
  });
  if (training) tape.set_gradient(logits, d_logits);
  record_loss_totals(tape, loss, nll, s, li.dtype);
}

void record_loss_totals(Tape& tape, Value loss, Value nll, const LossSpec& s, DType type) {
  if (s.totals == nullptr) return;
  tape.record("loss_totals", {loss, nll}, {},
              [=, rows = tape.info(loss).cols, totals = s.totals, labels = s.labels](const Run& r) {
                kernels::loss_totals(r.ctx, {.loss = r(loss),
                                             .nll = r(nll),
                                             .targets = r(labels),
                                             .rows = rows,
                                             .dtype = type,
                                             .totals = totals,
                                             .accumulate = true});
              });
}

}  // namespace saturate::ops
