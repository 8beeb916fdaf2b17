// SPDX-License-Identifier: Apache-2.0
#include "train/run_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "base/config_keys.h"
#include "base/durable_file.h"
#include "base/error.h"
#include "base/json.h"
#include "train/corpora.h"
#include "train/named_text.h"

namespace saturate::train {
namespace {

namespace fs = std::filesystem;

std::string path_of(const std::string& folder) {
  return (fs::path(folder) / "config.toml").string();
}

void make_absolute(std::string& path) {
  if (path != "-" && !path.empty()) path = fs::absolute(path).lexically_normal().string();
}

// As it is saved: nothing of one start, paths that hold in every folder.
RunConfig to_save(RunConfig config) {
  config.resume = config.quiet = false;
  for (auto* paths : {&config.data.train, &config.data.valid})
    for (std::string& path : *paths) make_absolute(path);
  for (auto* sets : {&config.data.more_valid, &config.data.test}) {
    for (std::string& element : *sets) {
      NamedText text = parse_named_text(element);
      for (std::string& path : text.paths) make_absolute(path);
      element = element_of(text);
    }
  }
  return config;
}

}  // namespace

std::optional<RunConfig> read_run_settings(const std::string& folder) {
  const std::string path = path_of(folder);
  if (!fs::exists(path)) return std::nullopt;
  RunConfig config;
  merge_toml_file(config, path);
  config.out.clear();
  config.resume = config.quiet = false;
  return config;
}

void write_run_settings(const std::string& folder, const RunConfig& config) {
  write_durable_file(path_of(folder), to_toml(to_save(config)));
}

std::string changed_settings(const std::string& folder, const RunConfig& now) {
  const std::optional<RunConfig> saved = read_run_settings(folder);
  if (!saved) return "not known, for there is no " + path_of(folder);
  const RunConfig before = to_save(*saved), current = to_save(now);
  std::string changed;
  for (const config::Key& key : config::keys()) {
    if (std::string_view(key.name) == "out") continue;
    const std::string was = value_text(key, before), is = value_text(key, current);
    if (was == is) continue;
    changed += fmt::format("{}{} {} (was {})", changed.empty() ? "" : ", ", key.name,
                           is.empty() ? "the preset's" : is, was.empty() ? "the preset's" : was);
  }
  return changed;
}

constexpr std::string_view kOfTheVocabulary[] = {
    "data.vocab_size", "data.tokenizer_type", "data.character_coverage", "data.shared_vocabulary",
    "data.tokenizer_sentences"};

void check_tokenizer_settings(const std::string& folder, const RunConfig& now) {
  const std::optional<RunConfig> saved = read_run_settings(folder);
  if (!saved) return;
  for (const config::Key& key : config::keys()) {
    const std::string_view name = key.name;
    if (std::ranges::find(kOfTheVocabulary, name) == std::end(kOfTheVocabulary)) continue;
    const std::string was = value_text(key, *saved), is = value_text(key, now);
    if (was == is) continue;
    throw Error(
        Errc::invalid_argument, "resume",
        fmt::format("{} is {} and was {} when the run made its vocabulary, which it keeps; "
                    "leave it out, or start a new run",
                    name, is.empty() ? "the preset's" : is, was.empty() ? "the preset's" : was));
  }
}

namespace {

// Other folders may hold a config.toml of another program.
std::optional<std::string> run_of(const std::string& model) {
  const fs::path folder = (fs::absolute(model) / "").lexically_normal().parent_path();
  if (folder.filename() == "model") return folder.parent_path().string();
  if (folder.parent_path().filename() == "checkpoints")
    return folder.parent_path().parent_path().string();
  if (fs::exists(folder / "model") || fs::exists(folder / "checkpoints")) return folder.string();
  return std::nullopt;
}

}  // namespace

TextForm text_form_of(const std::string& model) {
  if (const std::optional<std::string> run = run_of(model)) {
    const std::optional<RunConfig> settings = read_run_settings(*run);
    if (!settings) return {};
    const std::vector<std::string>& keys = settings->data.languages;
    return {settings->data.format, keys.size() == 1 ? keys.front() : ""};
  }
  const fs::path config = fs::path(model) / "config.json";
  if (!fs::is_regular_file(config)) return {};
  const Json json = read_json_file(config.string());
  const Json& kept = json["quantization_config"]["text"];
  const auto text = [&](const char* key) {
    const std::string* value = kept[key].if_string();
    return value == nullptr ? std::string() : *value;
  };
  return {text("format"), text("key")};
}

void check_text_is_there(const RunConfig& config) {
  const auto check = [&](const std::vector<std::string>& paths, const std::string& which,
                         const char* what, const char* flag) {
    for (size_t i = 0; i < paths.size(); ++i) {
      const std::string& path = paths[i];
      if (path == "-" || fs::exists(path) || fs::exists(copy_of_text(config.out, which, i, path))) {
        continue;
      }
      throw Error(
          Errc::io, "resume",
          fmt::format("{}: the {} text of this run is not there; if it has moved, say where "
                      "it is now with {}",
                      path, what, flag));
    }
  };
  check(config.data.train, "train", "training", "--train");
  check(config.data.valid, "valid", "validation", "--valid");
  for (const NamedText& t : further_validation_texts(config))
    check(t.paths, "valid-" + t.name, "validation", "--valid");
  for (const NamedText& t : test_texts(config)) check(t.paths, "test-" + t.name, "test", "--test");
}

}  // namespace saturate::train
