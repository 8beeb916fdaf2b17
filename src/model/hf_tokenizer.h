// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace saturate::model {

// What MarianTokenizer of transformers reads beside the weights.
struct MarianTokenizerFiles {
  std::string source_spm, target_spm;      // SentencePiece models to copy; equal for a joint one
  std::vector<std::string> source_pieces;  // by id
  std::vector<std::string> target_pieces;  // empty: the source's vocabulary serves both sides
  std::string source_language, target_language;  // "en", "de"; may be empty
  std::string unk_piece = "<unk>", eos_piece = "</s>", pad_piece = "<pad>";
  int64_t max_length = 512;
};

// Writes source.spm, target.spm, vocab.json (target_vocab.json), tokenizer_config.json into
// `folder`. Errors: io; invalid_argument when a special piece is in no vocabulary or a piece occurs
// twice.
void save_marian_tokenizer(const std::string& folder, const MarianTokenizerFiles& files);

}  // namespace saturate::model
