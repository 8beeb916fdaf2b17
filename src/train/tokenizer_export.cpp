// SPDX-License-Identifier: Apache-2.0
#include "train/tokenizer_export.h"

#include <fmt/format.h>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/log.h"
#include "data/tokenizer_json.h"
#include "model/hf_config.h"
#include "model/hf_tokenizer.h"

namespace saturate::train {
namespace {

using data::Tokenizer;

void write_fast_tokenizer(const std::string& folder, const model::ModelConfig& config,
                          const Tokenizer& t) {
  const bool translates = config.kind == model::ModelKind::encoder_decoder;
  std::string text;
  try {
    text = data::tokenizer_json(
        t, translates ? data::SentenceEnd::appended : data::SentenceEnd::left_out);
  } catch (const Error& e) {
    if (e.code() != Errc::unsupported) throw;
    log_warning(fmt::format("{}: {}", folder, e.what()));
    return;
  }
  write_durable_file(folder + "/tokenizer.json", text);
  Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
              {"unk_token", t.piece(t.unk_id())},
              {"eos_token", t.piece(t.eos_id())},
              {"pad_token", t.piece(t.pad_id())},
              {"clean_up_tokenization_spaces", false},
              {"model_input_names", Json::Array{"input_ids", "attention_mask"}},
              {"model_max_length", config.max_positions}};
  if (!translates) out.add("bos_token", t.piece(t.eos_id()));
  write_json_file(folder + "/tokenizer_config.json", out);
}

}  // namespace

void export_tokenizer(const std::string& folder, const model::ModelConfig& config,
                      const Tokenizer& source, const Tokenizer& target) {
  if (target.is_json()) {  // save_tokenizers() has written it
    const auto name = [&](int32_t id) {
      return id >= 0 && id < target.vocab_size() ? Json(target.piece(id)) : Json();
    };
    Json out = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                {"eos_token", name(target.eos_id())},
                {"clean_up_tokenization_spaces", false},
                {"model_input_names", Json::Array{"input_ids", "attention_mask"}},
                {"model_max_length", config.max_positions}};
    // Of the folder that it came from: names that this program has no use for, and others need.
    const Json settings =
        target.settings().empty() ? Json(Json::Object{}) : parse_json(target.settings(), folder);
    for (const auto& [key, value] : *settings.if_object()) out.add(key, value);
    if (target.pad_id() >= 0 && settings.find("pad_token") == nullptr)
      out.add("pad_token", name(target.pad_id()));
    return write_json_file(folder + "/tokenizer_config.json", out);
  }
  const bool joint = source.pieces() == target.pieces();
  if (model::nearest_hf_class(config) == model::HfClass::marian && !target.is_bytes()) {
    model::save_marian_tokenizer(
        folder, {.source_spm = folder + "/source.spm",
                 .target_spm = folder + "/target.spm",
                 .source_pieces = source.pieces(),
                 .target_pieces = joint ? std::vector<std::string>{} : target.pieces(),
                 .source_language = {},
                 .target_language = {},
                 .max_length = config.max_positions});
  } else if (joint) {
    write_fast_tokenizer(folder, config, target);
  }
}

}  // namespace saturate::train
