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
  record_items(tape, model, layout, batch, static_cast<size_t>(layout.words) * sizeof(int32_t),
               model::Items(model.config()).all(), {}, loss);
}

model::Transformer::State record_items(Tape& tape, const model::Transformer& model,
                                       const data::BatchLayout& layout, int32_t* batch,
                                       size_t stride, model::ItemRange items,
                                       const model::Transformer::State& given, ops::LossSpec loss) {
  const data::BatchShape& s = layout.shape;
  tape.per_slot(batch, stride, stride);
  tape.set_auxiliary(
      {.grad_scale = loss.grad_scale, .device_scale = loss.device_scale, .routing = loss.routing});
  const model::PackedSide target =
      side_of(batch, layout.target, s.target_rows, s.sequences, s.max_target);
  model::PackedSide source;
  if (s.source_rows > 0)
    source = side_of(batch, layout.source, s.source_rows, s.sequences, s.max_source);
  const model::Transformer::State passed = model.record(tape, items, given, source, target);
  if (!items.has(model::Items(model.config()).output)) return passed;
  const Value logits = model.logits(tape, passed.stream);
  // Tensor-parallel ranks have the same rows of them and all compute their loss; the first counts.
  loss.vocabulary = model.layout().ranks({Layout::Axis::tp});
  if (loss.vocabulary.part() != 0) loss.totals = nullptr;
  loss.labels = batch + layout.labels + tape.first_row();
  loss.vocab = model.config().vocab_target;
  ops::cross_entropy(tape, logits, loss);
  return {};
}

}  // namespace saturate::train
