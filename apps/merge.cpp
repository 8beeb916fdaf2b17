// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "model/adapter_folder.h"
#include "model/folder_manifest.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/model_folder.h"
#include "model/transformer.h"
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

void copy_tokenizers(const std::string& from, const std::string& to) {
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_of_a_tokenizer(name))
      fs::copy_file(entry.path(), fs::path(to) / name, fs::copy_options::overwrite_existing);
  }
}

}  // namespace

int run_merge(const MergeOptions& o) {
  const train::ModelPlace place = train::model_place(o.model, o.adapter);
  if (place.adapter.empty()) {
    throw Error(
        Errc::invalid_argument, "merge",
        fmt::format("{} is a whole model; give an adapter of it with --adapter", place.folder));
  }
  std::error_code unknown;
  if (fs::exists(o.out, unknown) && !fs::is_empty(o.out, unknown)) {
    throw Error(
        Errc::invalid_argument, "merge",
        fmt::format("{} is there already and holds something; choose another --out", o.out));
  }
  model::check_model_files(place.folder);
  model::check_model_files(place.adapter);
  const model::ModelConfig config = model::read_model_config(place.folder);
  model::check_hf_weights(place.folder, config);
  const model::Adapter adapter = model::read_adapter(place.adapter, place.folder, config);
  const std::vector<float> weights = model::read_weights(place.folder, config, &adapter);
  ParameterStore places({}, DType::f32);  // of what read_weights returns
  const model::Transformer model(config, places);
  const auto get = [&](const std::string& name) -> std::span<const float> {
    const ParameterSpec& p = places.spec(places.find(name));
    return {weights.data() + p.offset, static_cast<size_t>(p.size())};
  };
  fs::create_directories(fs::absolute(o.out).lexically_normal().parent_path(), unknown);
  std::string out = fs::absolute(o.out).lexically_normal().string();
  if (out.ends_with('/')) out.pop_back();
  train::write_whole_folder(out, 0, [&](const std::string& folder) {
    model::save_hf(folder, config, model::read_translate_config(place.folder), get);
    copy_tokenizers(place.folder, folder);
  });
  log_info(fmt::format("{}: {} with {} of rank {} beside {} projections", o.out, place.folder,
                       place.adapter, adapter.lora.rank, adapter.lora.linears.size()));
  return 0;
}

}  // namespace saturate::apps
