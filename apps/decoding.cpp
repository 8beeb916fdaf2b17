// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer.h"

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
