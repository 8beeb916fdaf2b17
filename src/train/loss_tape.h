// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "data/batch.h"
#include "model/transformer.h"
#include "ops/cross_entropy.h"

namespace saturate::train {

// Of the micro-batches of a model whose ranks may have chunks of the rows (model::row_chunks).
data::BatchLayout batch_layout_of(const data::BatchShape& shape, const model::ModelConfig& config,
                                  const Layout& layout);
// Derives from a batch in host memory, before it goes to its device, what this rank needs for its
// chunks; writes nothing where rows are not cut so. Cost: a pass over the labels.
void cut_in_chunks(const data::BatchLayout& batch, const Layout& layout, int32_t* words);

// Records the whole model on one packed batch at `batch` (device memory in the layout's order):
// from token ids to the loss. loss.labels and loss.vocab are filled in here. Batches of further
// slots of the tape lie behind the first, layout.words apart.
void record_loss(Tape& tape, const model::Transformer& model, const data::BatchLayout& layout,
                 int32_t* batch, ops::LossSpec loss);

// The same of some of the model's items, on what passes from those before; returns what passes on.
// Batches of further slots lie `stride` bytes apart, with what else belongs to the slot behind them.
model::Transformer::State record_items(Tape& tape, const model::Transformer& model,
                                       const data::BatchLayout& layout, int32_t* batch,
                                       size_t stride, model::ItemRange items,
                                       const model::Transformer::State& given, ops::LossSpec loss);

}  // namespace saturate::train
