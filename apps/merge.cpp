// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "apps/commands.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "model/adapter_folder.h"
#include "model/folder_manifest.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/marian_npz.h"
#include "model/model_folder.h"
#include "model/transformer.h"
#include "train/published_tokenizers.h"
#include "train/translation.h"
#include "train/whole_folder.h"

namespace saturate::apps {
namespace {

namespace fs = std::filesystem;

// Files of tokenizers, whoever wrote them; the rest of a folder is written anew or is no part of it.
bool is_of_a_tokenizer(const std::string& name) {
  constexpr std::array kParts = {"token", "vocab", "merges", "chat_template"};
  const bool named = std::ranges::any_of(
      kParts, [&](const char* part) { return name.find(part) != std::string::npos; });
  return named || name.ends_with(".spm") || name.ends_with(".model");
}

void write_tokenizers(const std::string& from, const model::ModelConfig& config,
                      const std::string& to) {
  if (model::is_marian_folder(from)) {
    const train::Tokenizers t = train::load_tokenizers_of(from, config);
    return train::save_tokenizers(to, t.source, t.target);
  }
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_of_a_tokenizer(name))
      fs::copy_file(entry.path(), fs::path(to) / name, fs::copy_options::overwrite_existing);
  }
}

// What is said of a model in files that are written anew, and is no part of what is computed here.
void keep_fields(const std::string& from, const std::string& to, const char* file,
                 std::initializer_list<const char*> keys) {
  const fs::path old = fs::path(from) / file, written = fs::path(to) / file;
  if (!fs::exists(old) || !fs::exists(written)) return;
  const Json given = read_json_file(old.string());
  Json json = read_json_file(written.string());
  for (const char* key : keys) {
    if (const Json* value = given.find(key); value != nullptr && json.find(key) == nullptr)
      json.add(key, *value);
  }
  write_json_file(written.string(), json);
}

model::WeightFormat format_of(const ExportOptions& o) {
  model::WeightFormat format;
  if (o.dtype != "fp32") format.dtype = o.dtype == "bf16" ? "BF16" : "F16";
  if (o.max_shard) format.shard_bytes = static_cast<uint64_t>(*o.max_shard);
  return format;
}

// The mean of `weights`, of the model in `folder`, and of the others', summed in double precision.
// Errors: invalid_argument where they are not models of one shape and vocabulary.
std::vector<float> averaged(std::vector<float> weights, const std::string& folder,
                            const model::ModelConfig& config,
                            const std::vector<std::string>& others) {
  if (others.empty()) return weights;
  const train::Tokenizers tokenizers = train::load_tokenizers_of(folder, config);
  std::vector<double> sums(weights.begin(), weights.end());
  for (const std::string& path : others) {
    const std::string other = train::model_folder(path);
    model::check_model_files(other);
    const auto refuse = [&](const char* what) {
      throw Error(Errc::invalid_argument, "export",
                  fmt::format("{} cannot be averaged with {}: {}", other, folder, what));
    };
    if (!(model::read_model_config(other) == config)) refuse("their config.json differ in shape");
    const train::Tokenizers t = train::load_tokenizers_of(other, config);
    if (t.source.fingerprint() != tokenizers.source.fingerprint() ||
        t.target.fingerprint() != tokenizers.target.fingerprint())
      refuse("their vocabularies differ");
    model::check_hf_weights(other, config);
    const std::vector<float> more = model::read_weights(other, config);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += double{more[i]};
  }
  const auto count = static_cast<double>(1 + others.size());
  for (size_t i = 0; i < sums.size(); ++i) weights[i] = static_cast<float>(sums[i] / count);
  return weights;
}

void write_folder(const ExportOptions& o, const train::ModelPlace& place, const char* command) {
  std::error_code unknown;
  if (fs::exists(o.out, unknown) && !fs::is_empty(o.out, unknown)) {
    throw Error(
        Errc::invalid_argument, command,
        fmt::format("{} is there already and holds something; choose another --out", o.out));
  }
  model::check_model_files(place.folder);
  if (!place.adapter.empty()) model::check_model_files(place.adapter);
  const model::ModelConfig config = model::read_model_config(place.folder);
  model::check_hf_weights(place.folder, config);
  std::optional<model::Adapter> adapter;
  if (!place.adapter.empty()) adapter = model::read_adapter(place.adapter, place.folder, config);
  const std::vector<float> weights =
      averaged(model::read_weights(place.folder, config, adapter ? &*adapter : nullptr),
               place.folder, config, o.others);
  ParameterStore places({}, DType::f32);  // of what read_weights returns
  const model::Transformer model(config, places);
  const auto get = [&](const std::string& name) -> std::span<const float> {
    const ParameterSpec& p = places.spec(places.find(name));
    return {weights.data() + p.offset, static_cast<size_t>(p.size())};
  };
  std::string out = fs::absolute(o.out).lexically_normal().string();
  if (out.ends_with('/')) out.pop_back();
  fs::create_directories(fs::path(out).parent_path(), unknown);
  train::write_whole_folder(out, 0, [&](const std::string& folder) {
    model::save_hf(folder, config, model::read_translate_config(place.folder), get, format_of(o));
    write_tokenizers(place.folder, config, folder);
    keep_fields(place.folder, folder, "config.json", {"tokenizer_class"});
    keep_fields(place.folder, folder, "generation_config.json", {"forced_bos_token_id"});
  });
  if (!o.others.empty()) {
    return log_info(fmt::format("{}: the mean of {} models like {}, in {}", o.out,
                                o.others.size() + 1, place.folder, o.dtype));
  }
  if (!adapter) return log_info(fmt::format("{}: {} in {}", o.out, place.folder, o.dtype));
  log_info(fmt::format("{}: {} with {} of rank {} beside {} projections, in {}", o.out,
                       place.folder, place.adapter, adapter->lora.rank,
                       adapter->lora.linears.size(), o.dtype));
}

}  // namespace

int run_merge(const ExportOptions& o) {
  const train::ModelPlace place = train::model_place(o.model, o.adapter);
  if (place.adapter.empty()) {
    throw Error(
        Errc::invalid_argument, "merge",
        fmt::format("{} is a whole model; give an adapter of it with --adapter", place.folder));
  }
  write_folder(o, place, "merge");
  return 0;
}

int run_export(const ExportOptions& o) {
  const train::ModelPlace place = train::model_place(o.model, o.adapter);
  if (!o.others.empty() && !place.adapter.empty()) {
    throw Error(
        Errc::invalid_argument, "export",
        fmt::format("{} is an adapter; make models of it and the others with saturate merge, "
                    "and average these",
                    place.adapter));
  }
  write_folder(o, place, "export");
  return 0;
}

}  // namespace saturate::apps
