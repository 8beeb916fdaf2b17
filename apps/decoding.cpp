// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "apps/commands.h"
#include "base/log.h"

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

}  // namespace saturate::apps
