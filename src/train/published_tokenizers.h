// SPDX-License-Identifier: Apache-2.0
// Tokenizers of model folders, our own and published ones.
#pragma once
#include <string>

#include "model/model_config.h"
#include "train/corpora.h"

namespace saturate::train {

// The tokenizers of a model folder, whose vocabularies are those of `config`: SentencePiece's model
// under the name that the family gives it, with the ids that transformers gives its pieces, else a
// tokenizer.json. Errors: io; invalid_argument, when they are of another size or there is none that we
// read.
Tokenizers load_tokenizers_of(const std::string& folder, const model::ModelConfig& config);
void check_vocabulary(const std::string& folder, const model::ModelConfig& config,
                      const Tokenizers& tokenizers);

}  // namespace saturate::train
