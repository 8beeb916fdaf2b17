// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/transformer.h"
#include "model/translator.h"
#include "train/corpora.h"
#include "train/gathered_weights.h"
#include "train/training_step.h"

namespace saturate::train {

struct ValidationResult {
  double loss = 0;  // mean per target token, without label smoothing
  double bleu = 0, chrf = 0;
  bool translated = false;  // bleu and chrf were measured; not finite when decoding was not
  std::vector<std::string> hypotheses;
};

// A text to judge by; borrowed. The texts are empty for a language model.
struct ValidationSet {
  const data::TokenCache* tokens = nullptr;
  std::span<const std::string> source, reference;
};
std::vector<ValidationSet> validation_sets(const Corpora& corpora);  // data.valid first
std::vector<ValidationSet> test_sets(const Corpora& corpora);

struct ValidatorOptions {
  std::vector<ValidationSet> sets;  // at least one
  int64_t beam = 1;
  bool translate = true;  // where there is text
};

// Judges the weights a run would ship: its average where there is one, else its masters. Holds its
// own inference copy of them, so training's memory is not touched: run() may go on in another thread
// while training does, on a stream of its own.
class Validator {
 public:
  Validator(const RunConfig& config, const model::ModelConfig& model, const Corpora& corpora,
            const ParameterStore& training, const data::BatchShape& shape,
            ValidatorOptions options);

  // Copies the weights to judge; synchronises `step`.
  void take_weights(TrainingStep& step, const ParameterStore& training);
  // The same where no rank holds them all. Collective: the other ranks call weights.gather().
  void take_weights(TrainingStep& step, GatheredWeights& weights);
  // Copies the weights of a model folder. Errors: those of model::load_weights.
  void load_weights(const std::string& folder, const model::ModelConfig& model);
  ValidationResult run(const ValidationSet& set);
  const std::vector<ValidationSet>& sets() const noexcept { return options_.sets; }

  const ParameterStore& weights() const noexcept { return store_; }

 private:
  double loss(const data::TokenCache& tokens);
  void translate(const ValidationSet& set, ValidationResult& result);

  const RunConfig& config_;
  const Corpora& corpora_;
  const ValidatorOptions options_;
  ParameterStore store_;
  model::Transformer model_;
  data::BatchLayout layout_;
  Stream stream_;
  Buffer batch_;
  HostBuffer host_;  // a batch on its way to batch_
  Buffer totals_, arena_, workspace_;
  Tape tape_;
  std::unique_ptr<model::Translator> translator_;
};

}  // namespace saturate::train
