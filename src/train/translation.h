// SPDX-License-Identifier: Apache-2.0
// Text in, text out: what validation, `translate` and `eval` share.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/transformer.h"
#include "model/translator.h"
#include "train/corpora.h"

namespace saturate::train {

// Shapes of decoding for at most `max_source` source tokens, from the user's settings.
model::TranslatorOptions translator_options(const TranslateConfig& config, int64_t max_source,
                                            int64_t beam);

// Source ids cut to `limit` tokens, end-of-sentence kept: a translation of the beginning beats
// none.
std::vector<int32_t> clip_source(std::vector<int32_t> ids, int64_t limit, int32_t eos);

// A model folder (or a run folder, whose model/ or newest checkpoint is taken), ready to run.
struct LoadedModel {
  std::string folder;
  model::ModelConfig config;
  Tokenizers tokenizers;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<model::Transformer> transformer;
};
// Errors: io, invalid_argument (no model there; vocabulary and tokenizer differ), out_of_memory.
LoadedModel load_model(const std::string& path, const std::string& device,
                       const std::string& precision);

// Translates lines in their order; `progress` (may be empty) gets the number done after each block.
std::vector<std::string> translate_lines(const LoadedModel& model, const TranslateConfig& config,
                                         std::span<const std::string> lines);

}  // namespace saturate::train
