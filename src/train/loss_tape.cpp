// SPDX-License-Identifier: Apache-2.0
#include "train/loss_tape.h"

#include <algorithm>

#include "ops/fp8_product.h"
#include "ops/row_chunks.h"

namespace saturate::train {
namespace {

model::PackedSide side_of(int32_t* base, const data::SideLayout& l, int64_t rows, int64_t sequences,
                          int64_t max_length) {
  return {.tokens = {.ids = base + l.ids,
                     .positions = base + l.positions,
                     .cu = base + l.cu,
                     .order = base + l.order,
                     .valid = base + l.valid,
                     .chunk_offsets = base + l.chunk_offsets,
                     .rows = rows,
                     .sequences = sequences},
          .max_length = max_length};
}

}  // namespace

data::BatchLayout batch_layout_of(const data::BatchShape& shape, const model::ModelConfig& config,
                                  const Layout& layout) {
  return data::BatchLayout(shape, model::row_chunks(config, layout));
}

void cut_in_chunks(const data::BatchLayout& batch, const Layout& layout, int32_t* words) {
  if (batch.chunks == 0) return;
  const data::BatchShape& s = batch.shape;
  const int64_t parts = layout.extent(Layout::Axis::cp);
  const auto offsets = [&](const data::SideLayout& l, int64_t rows) {
    if (rows == 0) return;
    ops::chunk_offsets(words + l.cu, s.sequences,
                       ops::row_chunks(rows, parts, layout.coordinate(Layout::Axis::cp)),
                       words + l.chunk_offsets);
  };
  offsets(batch.source, s.source_rows);
  offsets(batch.target, s.target_rows);
  int32_t* out = words + batch.chunk_labels;
  for (int64_t part = 0; part < parts; ++part) {
    for (const ops::RowChunk& c : ops::row_chunks(s.target_rows, parts, part))
      out = std::copy_n(words + batch.labels + c.first, c.rows, out);
  }
}

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
  ops::begin_weights_in_fp8(tape);
  const model::PackedSide target =
      side_of(batch, layout.target, s.target_rows, s.sequences, s.max_target);
  model::PackedSide source;
  if (s.source_rows > 0)
    source = side_of(batch, layout.source, s.source_rows, s.sequences, s.max_source);
  const model::Transformer::State passed = model.record(tape, items, given, source, target);
  if (!items.has(model::Items(model.config()).output)) return passed;
  const int32_t* const labels = batch + (layout.chunks > 0 ? layout.chunk_labels : layout.labels);
  loss.vocab = model.config().vocab_target;
  loss.labels = labels + tape.first_row();
  if (model.record_output_loss(tape, passed.stream, loss)) return {};
  const Value logits = model.logits(tape, passed.stream);
  loss.labels = labels + tape.first_row();  // tensor-parallel ranks have gathered their rows
  // Tensor-parallel ranks have the same rows of them and all compute their loss; the first counts.
  loss.vocabulary = model.layout().ranks({Layout::Axis::tp});
  if (loss.vocabulary.part() != 0) loss.totals = nullptr;
  ops::cross_entropy(tape, logits, loss);
  return {};
}

}  // namespace saturate::train
