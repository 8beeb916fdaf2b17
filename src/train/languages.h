// SPDX-License-Identifier: Apache-2.0
// Languages of a multilingual translation model, and how its texts name them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "model/model_config.h"

namespace saturate::train {

struct Languages {
  enum class Told : uint8_t {
    nothing,        // no multilingual model
    source_before,  // "SOURCE text </s>", and the translation begins with TARGET: NLLB, M2M100, mBART-50
    source_behind,  // "text </s> SOURCE", and the translation begins with TARGET: mBART, older NLLB
    target_before   // ">>TARGET<< text </s>": OPUS-MT
  };
  Told told = Told::nothing;
  // Ids by the code that people give: eng_Latn (NLLB), en_XX (mBART), en (M2M100), fra (OPUS-MT).
  std::map<std::string, int32_t> ids;
  // Those that are meant where nobody says: of tokenizer_config.json, or given at loading; may be empty.
  std::string source, target;
  bool target_is_start = false;  // decoding starts with TARGET itself and nothing is forced (mBART)

  // Whether a text needs to know the side's language.
  bool needs_source() const { return told == Told::source_before || told == Told::source_behind; }
  bool needs_target() const { return needs_source() && !target_is_start; }
  // The model's code for what a client calls a language: a code of its own, or ISO 639-1's two letters;
  // "" where it has none.
  std::string code_of(const std::string& name) const;
  // What clients call it: two letters where there are any for it, else the code.
  static std::string name_of(const std::string& code);
  // Errors: invalid_argument for a code that is none of these, naming the nearest.
  int32_t id_of(const std::string& code) const;
  // What stands around a source text, and what its translation begins with. Codes that are "" are left
  // out. Errors: those of id_of.
  data::TextFrame source_frame(const std::string& from, const std::string& to, int32_t eos) const;
  std::vector<int32_t> target_begin(const std::string& to) const;
};

// The tokens of languages that a published folder names, in the order of their ids.
struct LanguageToken {
  std::string text;  // "__en__"
  int64_t id = -1;   // -1: behind the one before
};
std::vector<LanguageToken> language_tokens(const std::string& folder,
                                           const model::ModelConfig& config);

// Of a folder with this tokenizer of its target side. Errors: io, invalid_argument for damaged files.
Languages read_languages(const std::string& folder, const model::ModelConfig& config,
                         const data::Tokenizer& target);

// The token that every translation of this folder begins with (forced_bos_token_id), or -1.
// Errors: io; invalid_argument for an id that the vocabulary lacks.
int64_t read_forced_first(const std::string& folder, const model::ModelConfig& config);

}  // namespace saturate::train
