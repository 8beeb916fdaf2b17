// SPDX-License-Identifier: Apache-2.0
// Which chunks of a model the ranks of a pipeline hold, and the list of actions that each runs.
#pragma once
#include <cstdint>

#include "data/batch.h"
#include "model/model_config.h"
#include "model/stages.h"
#include "ops/layout.h"
#include "parallel/pipeline/schedule.h"
#include "train/parallel_setup.h"

namespace saturate::train {

struct Pipeline {
  model::Stages stages;                   // empty on one rank
  parallel::pipeline::Schedule schedule;  // with transfers
  parallel::pipeline::ActionTimes times;  // estimated, in seconds
};

// The same on every rank but for stages.rank. The model is cut by what its items cost
// (Transformer::item_costs). options.schedule names a schedule, or a file of one that ends in .csv.
// Errors: those of make_schedule() and cut_items(); io; invalid_argument for a file that is not for
// this many ranks or micro-batches.
Pipeline plan_pipeline(const model::ModelConfig& config, const data::BatchShape& shape,
                       int64_t micro_batches, const ParallelOptions& options, const Layout& layout);

}  // namespace saturate::train
