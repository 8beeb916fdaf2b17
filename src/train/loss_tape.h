// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "data/batch.h"
#include "model/transformer.h"
#include "ops/cross_entropy.h"

namespace saturate::train {

// Records the whole model on one packed batch at `batch` (device memory in the layout's order):
// from token ids to the loss. loss.labels and loss.vocab are filled in here. Batches of further
// slots of the tape lie behind the first, layout.words apart.
void record_loss(Tape& tape, const model::Transformer& model, const data::BatchLayout& layout,
                 int32_t* batch, ops::LossSpec loss);

}  // namespace saturate::train
