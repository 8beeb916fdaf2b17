// SPDX-License-Identifier: Apache-2.0
// The text side of a run: tokenizers, tokenised corpora, validation sentences.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/interrupt.h"
#include "data/token_cache.h"
#include "data/tokenizer.h"
#include "parallel/communicator.h"
#include "train/progress.h"

namespace saturate::train {

// A named set beside data.valid: more validation, or a test at the end.
struct NamedSet {
  std::string name;
  data::TokenCache tokens;
  std::vector<std::string> source, reference;  // text; empty for a language model
};

struct Corpora {
  data::Tokenizer source, target;  // equal for a joint vocabulary; a language model uses target
  data::TokenCache train;
  std::optional<data::TokenCache> valid;
  std::vector<std::string> valid_source, valid_reference;  // text, for BLEU (encoder-decoder)
  std::vector<NamedSet> more_valid, test;
};

// What was kept and left out of a whole corpus, in a line.
std::string text_summary(const char* what, const data::CacheStats& stats);
// Warns of the lines left out; nothing when there are none.
void report_bad_lines(const char* what, const data::BadLines& bad);

// Where a run keeps its copy of the text number `index` of data.train, data.valid or a named set
// (`which`: "train", "valid", "valid-NAME", "test-NAME") when that can be read only once.
std::string copy_of_text(const std::string& folder, const std::string& which, size_t index,
                         const std::string& path);

// The program (Jinja) by which a model folder makes a prompt of a chat: its chat_template.jinja, or what its
// tokenizer_config.json says; empty without. Errors: those of read_json_file.
std::string chat_template_text(const std::string& folder);

// What its tokenizer_config.json says besides (Tokenizer::with_settings); empty without. Errors: those of
// read_json_file.
std::string tokenizer_settings(const std::string& folder);

// The tokenizers a run or model folder holds (source.spm, target.spm, vocab.json, or bytes).
struct Tokenizers {
  data::Tokenizer source, target;
};

// Trains or loads the tokenizers (or takes `given`), tokenises the corpora into <folder>/data/ and
// opens them. A single rank returns once the head of the training text is there, while the rest is
// made. Of several rank 0 writes; the others wait until all is there and open what it wrote. `lm`:
// the model takes text with one side. Shows what it does with `progress`. Errors: those of the data
// layer; Interrupted.
Corpora prepare_corpora(const RunConfig& config, const std::string& folder, bool lm,
                        const Tokenizers* given, parallel::Communicator& ranks,
                        const Interrupt& interrupt, Progress& progress);

Tokenizers load_tokenizers(const std::string& folder);
void save_tokenizers(const std::string& folder, const data::Tokenizer& source,
                     const data::Tokenizer& target);

}  // namespace saturate::train
