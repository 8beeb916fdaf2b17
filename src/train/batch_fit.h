// SPDX-License-Identifier: Apache-2.0
// The shape of the batches of a run, and whether a step of it fits the memory.
#pragma once
#include <functional>

#include "base/config.h"
#include "data/packer.h"
#include "data/token_cache.h"
#include "model/model_config.h"
#include "train/training_step.h"

namespace saturate::train {

// How documents become sequences: `stream` text is cut into full rows, other text by its lines.
data::PackUnit pack_unit(const RunConfig& config);

struct FittedRows {
  data::BatchShape shape;  // equal parts for the ranks that share a batch (row_multiple)
  // Rows of it that no token takes, so that batches are those of one rank (PackerOptions).
  int64_t source_padding = 0, target_padding = 0;
};

// Budgets from the configuration; what it leaves at 0 from the corpus's lengths.
FittedRows resolve_shape(const RunConfig& config, const data::TokenCache& cache,
                         const model::ModelConfig& model);

struct FittedBatch {
  BatchConfig batch;  // target_tokens and accumulate, changed together: their product stays
  FittedRows rows;
  StepMemory memory;
  std::optional<int64_t> recompute_units = {};  // StepOptions has it
};

// What fits train.memory, or what is free where that is not given, on every rank. Results stay the
// same but for rounding. With train.memory the micro-batch is halved (and accumulate doubled) as
// often as need be; with parallel.recompute = auto results are also computed again instead of kept,
// the cheapest first, and of all that fits what is modelled to take the least time is chosen.
// Without train.memory the batch stays as it is.
// Errors: out_of_memory, before anything is allocated; the message says what would fit, be it with
// the optimizer's state in host memory (parallel.offload). All ranks call it together. `rows_of`
// gives the batches of a configuration (resolve_shape); `like` and `layout` as plan_step() takes
// them.
using RowsOf = std::function<FittedRows(const RunConfig&)>;
FittedBatch fit_batch(const RunConfig& config, const RowsOf& rows_of,
                      const model::ModelConfig& model, const ParameterStore& like,
                      const Layout& layout, parallel::Communicator& ranks);

}  // namespace saturate::train
