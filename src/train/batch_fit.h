// SPDX-License-Identifier: Apache-2.0
// The shape of the batches of a run, and whether a step of it fits the memory.
#pragma once
#include "base/config.h"
#include "data/packer.h"
#include "data/token_cache.h"
#include "model/model_config.h"
#include "train/training_step.h"

namespace saturate::train {

// How documents become sequences: `stream` text is cut into full rows, other text by its lines.
data::PackUnit pack_unit(const RunConfig& config);

// Budgets from the configuration; what it leaves at 0 from the corpus's lengths.
data::BatchShape resolve_shape(const RunConfig& config, const data::TokenCache& cache,
                               const model::ModelConfig& model);

struct FittedBatch {
  BatchConfig batch;  // target_tokens and accumulate, changed together: their product stays
  data::BatchShape shape;
  StepMemory memory;
};

// Of one rank. With train.memory the micro-batch is halved (and accumulate doubled) until the plan fits it.
// Errors: out_of_memory, before anything is allocated, when the plan is larger than what is free;
// the message says which batch.target_tokens would fit. `like` as plan_step() takes it.
FittedBatch fit_batch(const RunConfig& config, const data::TokenCache& cache,
                      const model::ModelConfig& model, const ParameterStore& like,
                      const Layout& layout);

}  // namespace saturate::train
