// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "data/tokenizer.h"
#include "model/model_config.h"

namespace saturate::train {

// Writes what AutoTokenizer of transformers needs beside a model: MarianTokenizer's files where
// MarianMTModel computes it, tokenizer.json otherwise. Two vocabularies of any other model, and
// SentencePiece models that tokenizer.json cannot say, give nothing but a warning.
// Errors: io.
void export_tokenizer(const std::string& folder, const model::ModelConfig& config,
                      const data::Tokenizer& source, const data::Tokenizer& target);

}  // namespace saturate::train
