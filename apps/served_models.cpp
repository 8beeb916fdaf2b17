// SPDX-License-Identifier: Apache-2.0
#include "apps/served_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/counted.h"
#include "base/error.h"
#include "model/hf_config.h"

namespace saturate::apps {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "serve", what);
}

// "NAME=VALUE" or "VALUE", which is a path where it exists as it stands.
struct Named {
  std::string name, value;
};
Named parse_named(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0 || fs::exists(text)) return {"", text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::vector<double> parse_weights(const std::string& flag, const std::string& text) {
  constexpr double kLeast = 1e-6, kMost = 1e6;  // as translate has them
  std::vector<double> weights;
  for (const std::string& part : split(text)) {
    double value = 0;
    const char* const end = part.data() + part.size();
    const auto [at, error] = std::from_chars(part.data(), end, value);
    if (error != std::errc() || at != end || !(value >= kLeast && value <= kMost)) {
      refuse(fmt::format("--weights {}: \"{}\" is no number from {:g} to {:g}", flag, part, kLeast,
                         kMost));
    }
    weights.push_back(value);
  }
  return weights;
}

NamedModel parse_model(const std::string& text) {
  const Named named = parse_named(text);
  NamedModel m{.name = named.name, .given = {named.value}, .places = {}};
  if (!fs::exists(named.value) && named.value.find(',') != std::string::npos) {
    m.given = split(named.value);
    if (std::ranges::find(m.given, "") != m.given.end())
      refuse(fmt::format("--model {}: a folder is missing between commas", text));
    if (m.name.empty()) {
      refuse(
          fmt::format("--model {}: several folders that translate as one need a name to be "
                      "asked by; give NAME={}",
                      text, text));
    }
  }
  if (m.name.empty()) m.name = name_of_folder(named.value);
  for (const std::string& path : m.given) m.places.push_back(train::model_place(path));
  m.is_language_model =
      model::read_model_config(m.places[0].folder).kind == model::ModelKind::decoder_only;
  return m;
}

// The models that a flag is of: one by name, or without one the only one there can be.
template <class Can, class Take>
void give(std::vector<NamedModel>& models, const std::vector<std::string>& flags, const char* flag,
          const char* kind, const char* kinds, Can can, Take take) {
  std::vector<std::string> names;
  for (const NamedModel& m : models)
    if (can(m)) names.push_back(m.name);
  for (const std::string& each : flags) {
    const Named s = parse_named(each);
    const bool known = std::ranges::find(names, s.name) != names.end();
    if (s.name.empty() && names.size() != 1) {
      refuse(fmt::format("{} {} does not say of which of {} {} it is; give NAME={}", flag, s.value,
                         names.size(), kinds, s.value));
    }
    if (!s.name.empty() && !known) {
      refuse(fmt::format("{} {}: no {} is called {}; there is {}", flag, each, kind, s.name,
                         names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
    }
    for (NamedModel& m : models)
      if (can(m) && (s.name.empty() || s.name == m.name)) take(m, each, s.value);
  }
}

}  // namespace

std::string name_of_folder(const std::string& folder) {
  fs::path path = fs::path(folder).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.filename() == "model") path = path.parent_path();
  return path.filename().empty() ? "model" : path.filename().string();
}

NamedFolder parse_adapter(const std::string& text) {
  const Named named = parse_named(text);
  return {named.name.empty() ? name_of_folder(named.value) : named.name, named.value};
}

std::vector<NamedModel> read_models(const ServeOptions& o) {
  std::vector<NamedModel> models;
  for (const std::string& each : o.models) models.push_back(parse_model(each));
  give(
      models, o.shortlists, "--shortlist", "translation model", "translation models",
      [](const NamedModel& m) { return !m.is_language_model; },
      [](NamedModel& m, const std::string&, const std::string& file) { m.shortlist = file; });
  give(
      models, o.weights, "--weights", "model of several folders", "models of several folders",
      [](const NamedModel& m) { return m.is_ensemble(); },
      [](NamedModel& m, const std::string& flag, const std::string& list) {
        m.weights = parse_weights(flag, list);
        if (m.weights.size() == m.given.size()) return;
        refuse(fmt::format("--weights {}: {} for the {} folders of {}; give one for each", flag,
                           counted(m.weights.size(), "weight"), m.given.size(), m.name));
      });
  // Adapters do not say whose they are in a way that could be relied on.
  const auto language = std::ranges::count_if(models, &NamedModel::is_language_model);
  if (o.adapters.empty() || language == 1) return models;
  refuse(
      fmt::format("--adapter needs one language model, and {} are served here; an adapter alone "
                  "is served with --model",
                  language));
}

}  // namespace saturate::apps
