// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/transformer.h"
#include "model/translator.h"
#include "train/corpora.h"
#include "train/training_step.h"

namespace saturate::train {

struct ValidationResult {
  double loss = 0;  // mean per target token, without label smoothing
  double bleu = 0, chrf = 0;
  bool translated = false;  // bleu and chrf were measured; not finite when decoding was not
  std::vector<std::string> hypotheses;
};

// Judges the weights a run would ship: its average where there is one, else its masters. Holds its
// own inference copy of them, so training's memory is not touched.
class Validator {
 public:
  Validator(const RunConfig& config, const model::ModelConfig& model, const Corpora& corpora,
            const ParameterStore& training, const data::BatchShape& shape);

  // Copies the weights to judge; synchronises `step`.
  void take_weights(TrainingStep& step, const ParameterStore& training);
  ValidationResult run();

  const ParameterStore& weights() const noexcept { return store_; }

 private:
  double loss();
  void translate(ValidationResult& result);

  const RunConfig& config_;
  const Corpora& corpora_;
  ParameterStore store_;
  model::Transformer model_;
  data::BatchLayout layout_;
  Stream stream_;
  Buffer batch_, totals_, arena_, workspace_;
  std::optional<Tape> tape_;
  std::unique_ptr<model::Translator> translator_;
};

}  // namespace saturate::train
