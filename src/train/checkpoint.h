// SPDX-License-Identifier: Apache-2.0
// What a checkpoint of a run holds: a model folder that can be used as it is, and under training/
// what resuming needs.
#pragma once
#include <string>

#include "data/packer.h"
#include "model/model_config.h"
#include "ops/layout.h"
#include "train/corpora.h"
#include "train/text_identity.h"
#include "train/together.h"
#include "train/training_step.h"

namespace saturate::train {

// Where a run's first weights came from; both empty for random ones.
struct RunOrigin {
  std::string from, weights;  // init.from, and the fingerprint of what it held
};

// The host's part of a run's state; the device's is StepState and the flat arrays.
struct RunProgress {
  data::PackerState loader;
  double elapsed_s = 0;
  double best_score = 0;
  int64_t best_step = -1;  // -1: nothing validated yet
  int64_t validations_without_gain = 0;
  RunOrigin origin;
  TextIdentity texts;  // of training now; of validation when best_score was judged
};

// What of a run's state each rank holds.
struct StateOfRanks {
  const ParameterStore& store;  // of this rank: perhaps some parameters, parts of them, ranges
  const ParameterStore& all;    // every parameter, whole, without memory
  const Layout& layout;
};

// Writes config.json, model.safetensors, tokenizer files (the average's weights where there is one)
// and training/{optimizer.safetensors,state.json} into `folder`. Collective: every rank writes what
// it holds into the same files, which are the same for every layout; model.safetensors is made from
// the state file, each rank some tensors of it. Synchronises. Errors, on all ranks: io;
// invalid_argument when weights are not finite.
void write_checkpoint(const std::string& folder, const model::ModelConfig& config,
                      const TranslateConfig& translate, TrainingStep& step,
                      const StateOfRanks& state, const Corpora& corpora,
                      const RunProgress& progress, const Together& ranks);
// Free space that write_checkpoint needs: what it will write, each file rounded up to whole blocks.
uint64_t checkpoint_bytes(const model::ModelConfig& config, const StateOfRanks& state,
                          const Corpora& corpora);

// The two files of weights, by any stores that hold them (write_checkpoint's middle part).
void write_weights(const std::string& folder, const model::ModelConfig& config,
                   const StateOfRanks& state, const Stream& stream, const Together& ranks);

// The step that the checkpoint in `folder` calls the best; -1 for none, or when it cannot be read.
int64_t best_step_of(const std::string& folder);

// Whether a run of `config` with these tokenizers can continue the checkpoint in `folder`; dropout
// may change. Errors: invalid_argument with the first field that differs, both values; io.
void check_continues(const std::string& folder, const model::ModelConfig& config,
                     const Corpora& corpora);

// Continues exactly where the checkpoint was written. Errors: invalid_argument when the model or
// the settings that decide its state differ, or weights are not finite; io.
RunProgress read_checkpoint(const std::string& folder, TrainingStep& step, ParameterStore& store);

// A model folder alone: the weights that `store` ships, configuration, tokenizers; what translate
// loads and transformers opens. Errors: io; invalid_argument when weights are not finite.
void write_model(const std::string& folder, const model::ModelConfig& config,
                 const TranslateConfig& translate, const ParameterStore& store,
                 const Corpora& corpora);

}  // namespace saturate::train
