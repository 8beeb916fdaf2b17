// SPDX-License-Identifier: Apache-2.0
// Text in, text out: what validation, `translate` and `eval` share.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/transformer.h"
#include "model/translator.h"
#include "train/corpora.h"
#include "train/languages.h"
#include "train/published_tokenizers.h"

namespace saturate::train {

// Shapes of decoding for at most `max_source` source tokens, from the user's settings.
model::TranslatorOptions translator_options(const TranslateConfig& config, int64_t max_source,
                                            int64_t beam);

// Source ids cut to `limit` tokens, what ends a sentence (Tokenizer::sentence_end) kept: a translation of
// the beginning beats none.
std::vector<int32_t> clip_source(std::vector<int32_t> ids, int64_t limit,
                                 std::span<const int32_t> end);

// A model folder (or a run folder, whose model/ or newest checkpoint is taken), ready to run. Copies
// share the weights.
struct LoadedModel {
  std::string folder;
  model::ModelConfig config;
  TranslateConfig translate;  // how the run that made it decodes
  Tokenizers tokenizers;      // of a multilingual model for the languages below
  Languages languages;
  std::shared_ptr<ParameterStore> store;
  std::shared_ptr<model::Transformer> transformer;
  // Those that translate together with it, and what it counts among them (ensemble.h).
  std::vector<LoadedModel> others = {};
  double weight = 1;
};
// The folder with config.json that `path` names: itself, <path>/model, or its best or newest
// whole checkpoint. Errors: io; invalid_argument for an adapter, naming its base.
std::string model_folder(const std::string& path);

// A model, and the folder of an adapter of it or "".
struct ModelPlace {
  std::string folder, adapter;
};
// The same for what may be an adapter, or the run that trained one: its base is what
// adapter_config.json names, or where that is relative and not here, beside it. `adapter`: one that
// is given apart, or "". Errors: io; invalid_argument when both are adapters.
ModelPlace model_place(const std::string& path, const std::string& adapter = {});

// What may begin before the weights are there; called at most once each, one after the other, with
// the model that load_model() will return (which then moves: keep what its pointers point to).
struct LoadHooks {
  // Configuration and tokenizers are known.
  std::function<void(const LoadedModel&)> on_text;
  // The model runs, on weights that mean nothing yet: to plan, and to load what it needs. In a
  // thread of its own beside the reading of the weights; load_model() waits for it.
  std::function<void(const LoadedModel&)> on_memory;
  bool ids = false;  // text is token ids (Tokenizer::ids), and no tokenizer is needed
  // Folders of adapters that lie side by side beside a language model, each for the sequences that ask for it
  // (SamplingOptions::adapter); none is merged.
  std::vector<std::string> adapters = {};
  // Of a multilingual model; "": as its files say.
  std::string source_language = {}, target_language = {};
};

// Starts the device, reads the files and runs the hooks side by side. `precision`: auto, fp32, bf16,
// fp16 (GPUs alone), or on the CPU int8, which auto is for a folder that quantize_folder() made. Errors: io, invalid_argument
// (no model there; vocabulary and tokenizer differ; files that are not what their manifest.json
// says; weights that are not finite), out_of_memory, and those of the hooks. `path` and `adapter` are as model_place()
// takes them; an adapter is merged into the fp32 weights.
LoadedModel load_model(const std::string& path, const std::string& device,
                       const std::string& precision, const LoadHooks& hooks = {},
                       const std::string& adapter = {});

// The text of a translation: one line, and none for a source without words.
std::string decode_translation(const data::Tokenizer& target, size_t source_tokens,
                               std::span<const int32_t> ids);

}  // namespace saturate::train
