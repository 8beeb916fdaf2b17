// SPDX-License-Identifier: Apache-2.0
// The ranks of a job must train one thing: what each was told is compared before they begin.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "parallel/communicator.h"
#include "train/batch_fit.h"
#include "train/corpora.h"

namespace saturate::train {

// What must be equal on all ranks, as name and value in the same order everywhere.
using Settings = std::vector<std::pair<std::string, std::string>>;

// What a rank was told, before any text is read: every key of the configuration, with the preset's
// value where none is given, but those that may differ (kMayDiffer); device kind and precision as
// they resolve; sizes and samples of the files of text; the environment variables that change what
// is computed; the program's version. Errors: those of model_with() and resolve_precision().
Settings settings_of(const RunConfig& config, Device device);

// What a rank would train once its text is read: the tokenizers and the batch that fits its memory.
Settings plan_of(const Corpora& corpora, const FittedBatch& fitted);

// Returns when `mine` is equal on all ranks. Collective: every rank returns, or every rank throws
// the same. Errors: invalid_argument; names the settings, their values and the ranks that have
// them.
void require_agreement(const Settings& mine, parallel::Communicator& ranks);

// The text of that error from every rank's settings; "" when they are equal.
std::string disagreement(const std::vector<Settings>& of_rank);

}  // namespace saturate::train
