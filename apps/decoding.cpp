// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer.h"
#include "train/translation.h"

namespace saturate::apps {

TranslateConfig resolve_decoding(const DecodeOptions& given, const TranslateConfig& model) {
  TranslateConfig used = model;
  std::string line;
  const auto take = [&line](const char* name, const auto& option, auto& value) {
    if (option) value = *option;
    line += fmt::format("{} {} ({}), ", name, value, option ? "given" : "the model's");
  };
  take("beam", given.beam, used.beam);
  take("length penalty", given.length_penalty, used.length_penalty);
  take("batches of source tokens", given.batch_tokens, used.batch_tokens);
  log_info(fmt::format("decoding: {}at most {} x source + {} tokens (the model's)", line,
                       used.max_length_factor, used.max_length_offset));
  return used;
}

void require_languages(const train::LoadedModel& model, bool ids) {
  const train::Languages& l = model.languages;
  const bool no_source = l.needs_source() && l.source.empty() && !ids;
  if (!no_source && !(l.needs_target() && l.target.empty())) return;
  throw Error(
      Errc::invalid_argument, "languages",
      fmt::format("{} translates between {} languages, and its files do not say which; give "
                  "{}--target-lang, with codes like {}",
                  model.folder, l.ids.size(), no_source ? "--source-lang and " : "",
                  l.ids.begin()->first));
}

int32_t id_of_piece(const char* flag, const data::Tokenizer& tokenizer, const std::string& piece) {
  const std::vector<std::string>& pieces = tokenizer.pieces();
  const auto found = std::ranges::find(pieces, piece);
  if (found == pieces.end()) {
    throw Error(Errc::invalid_argument, "decoding",
                fmt::format("{}: the vocabulary has no piece {}; give one as vocab.json lists it "
                            "(a word's first piece begins with \u2581, which stands for a space)",
                            flag, piece));
  }
  return static_cast<int32_t>(found - pieces.begin());
}

}  // namespace saturate::apps
