// SPDX-License-Identifier: Apache-2.0
#include "train/loss_tape.h"

namespace saturate::train {
namespace {

model::PackedSide side_of(int32_t* base, const data::SideLayout& l, int64_t rows, int64_t sequences,
                          int64_t max_length) {
  return {.tokens = {.ids = base + l.ids,
                     .positions = base + l.positions,
                     .cu = base + l.cu,
                     .order = base + l.order,
                     .valid = base + l.valid,
                     .rows = rows,
                     .sequences = sequences},
          .max_length = max_length};
}

}  // namespace

void record_loss(Tape& tape, const model::Transformer& model, const data::BatchLayout& layout,
                 int32_t* batch, ops::LossSpec loss) {
  const data::BatchShape& s = layout.shape;
  const size_t bytes = static_cast<size_t>(layout.words) * sizeof(int32_t);
  tape.per_slot(batch, bytes, bytes);
  tape.set_auxiliary({.grad_scale = loss.grad_scale,
                      .device_scale = loss.device_scale,
                      .routing = loss.routing});
  const model::PackedSide target =
      side_of(batch, layout.target, s.target_rows, s.sequences, s.max_target);
  model::PackedSide source;
  Value memory;
  if (s.source_rows > 0) {
    source = side_of(batch, layout.source, s.source_rows, s.sequences, s.max_source);
    memory = model.encode(tape, source);
  }
  const Value logits = model.logits(tape, model.decode(tape, target, memory, &source));
  // Tensor-parallel ranks have the same rows of them and all compute their loss; the first counts.
  loss.vocabulary = model.layout().ranks({Layout::Axis::tp});
  if (loss.vocabulary.part() != 0) loss.totals = nullptr;
  loss.labels = batch + layout.labels + tape.first_row();
  loss.vocab = model.config().vocab_target;
  ops::cross_entropy(tape, logits, loss);
}

}  // namespace saturate::train
