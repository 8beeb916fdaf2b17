// SPDX-License-Identifier: Apache-2.0
// What a run begins with instead of random weights (init.from).
#pragma once
#include <optional>
#include <string>

#include "base/config.h"
#include "data/tokenizer.h"
#include "model/model_config.h"
#include "ops/parameters.h"
#include "parallel/communicator.h"
#include "train/corpora.h"

namespace saturate::train {

struct InitialModel {
  std::string from;     // init.from, as an absolute path
  std::string folder;   // the model folder found there; empty where the run has weights of its own
  std::string weights;  // their fingerprint, once they are known
  model::ModelConfig config;
  Tokenizers tokenizers;
};

// The model that init.from names, checked from its headers alone; nothing without init.from. A run
// that is resumed reads what it kept in <out>/data/ and needs the folder no more.
// Errors: invalid_argument when a key of the configuration contradicts the model (key, value given,
// value found), the vocabulary is another, or a resumed run began with something else; io.
std::optional<InitialModel> find_initial_model(const RunConfig& config);

// Completes `config` with what the model decides: the longest sentence, where it is not given.
void settle(RunConfig& config, const InitialModel& initial);

// The model to train: `initial` with this configuration's dropout and longest sentence.
model::ModelConfig resolve_initial(const RunConfig& config, const InitialModel& initial);

// Reads the weights into `store` and sets initial.weights; all ranks must have read the same.
// Errors: those of load_weights; invalid_argument for weights that differ between ranks.
void load_initial_weights(InitialModel& initial, ParameterStore& store,
                          parallel::Communicator& ranks);

// What find_initial_model reads when the run in `out` is resumed. Errors: io.
void keep_initial_model(const std::string& out, const InitialModel& initial);

}  // namespace saturate::train
