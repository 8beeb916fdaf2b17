// SPDX-License-Identifier: Apache-2.0
#include "model/generation_config.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>

#include "base/config_keys.h"
#include "base/log.h"
#include "model/hf_config.h"

namespace saturate::model {
namespace {

std::optional<config::Value> plain(const Json& json) {
  if (const int64_t* v = json.if_int()) return config::Value(*v);
  if (const double* v = json.if_double()) return config::Value(*v);
  if (const std::string* v = json.if_string()) return config::Value(*v);
  if (const bool* v = json.if_bool()) return config::Value(*v);
  return std::nullopt;
}

}  // namespace

Json to_generation_config(const ModelConfig& config, const TranslateConfig& translate) {
  Json out = {{"max_length", config.max_positions}};
  add_special_ids(out, config);
  if (!config.sampling.empty()) {
    const Json kept = parse_json(config.sampling, "sampling of the model");
    for (const Json::Member& field : *kept.if_object()) out.add(field.key, field.value);
  }
  if (config.kind != ModelKind::encoder_decoder) return out;
  out.add("decoder_start_token_id", config.decoder_start_id);
  out.add("forced_eos_token_id", config.eos_id);
  // Padding is an ordinary row of the output there, so it must be forbidden by name.
  if (config.pad_id >= 0) out.add("bad_words_ids", Json::Array{Json::Array{config.pad_id}});
  out.add("num_beams", translate.beam);
  out.add("length_penalty", translate.length_penalty);
  out.add("saturate", Json{{"max_length_factor", translate.max_length_factor},
                           {"max_length_offset", translate.max_length_offset},
                           {"batch_tokens", translate.batch_tokens}});
  return out;
}

std::string sampling_of(const Json& json) {
  constexpr const char* kFields[] = {"do_sample",
                                     "temperature",
                                     "top_k",
                                     "top_p",
                                     "min_p",
                                     "typical_p",
                                     "repetition_penalty",
                                     "no_repeat_ngram_size",
                                     "encoder_no_repeat_ngram_size",
                                     "min_length",
                                     "max_new_tokens"};
  Json kept = Json::Object{};
  for (const char* name : kFields)
    if (const Json* value = json.find(name); value != nullptr && plain(*value))
      kept.add(name, *value);
  return kept.size() == 0 ? "" : kept.dump();
}

TranslateConfig read_translate_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  RunConfig run;
  if (!std::filesystem::exists(path)) return run.translate;
  const Json json = read_json_file(path);
  JsonFields(json, "load", path);  // refuses what is no object
  const auto take = [&](const Json* from, const char* field, const char* key) {
    const Json* value = from ? from->find(field) : nullptr;
    if (!value || value->is_null()) return;
    const std::optional<config::Value> given = plain(*value);
    const std::string problem =
        given ? assign(*config::find_key(key), run, *given) : "is no single value";
    if (!problem.empty()) {
      log_warning(fmt::format("{}: {} {}; the default is used", path, field, problem));
    }
  };
  take(&json, "num_beams", "translate.beam");
  take(&json, "length_penalty", "translate.length_penalty");
  const Json* own = json.find("saturate");
  take(own, "max_length_factor", "translate.max_length_factor");
  take(own, "max_length_offset", "translate.max_length_offset");
  take(own, "batch_tokens", "translate.batch_tokens");
  return run.translate;
}

std::vector<UnusedField> unused_decoding(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  if (!std::filesystem::exists(path)) return {};
  const Json json = read_json_file(path);
  struct Field {
    const char* name;
    double usual;
    const char* flag;
  };
  constexpr Field kFields[] = {
      {"no_repeat_ngram_size", 0, "--no-repeat-ngram"},
      {"repetition_penalty", 1, "--repetition-penalty"},
      {"min_length", 0, "--min-length"},
      {"encoder_no_repeat_ngram_size", 0, ""},
      {"num_beam_groups", 1, "--beam-groups"},
      {"diversity_penalty", 0, "--diversity-penalty"},
  };
  std::vector<UnusedField> unused;
  for (const Field& f : kFields) {
    const Json* value = json.find(f.name);
    if (value == nullptr) continue;
    const int64_t* whole = value->if_int();
    const double* number = value->if_double();
    if (whole == nullptr && number == nullptr) continue;
    const double says = whole != nullptr ? static_cast<double>(*whole) : *number;
    if (says != f.usual) unused.push_back({f.name, f.flag, says});
  }
  return unused;
}

}  // namespace saturate::model
