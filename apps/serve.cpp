// SPDX-License-Identifier: Apache-2.0
#include "serve/server.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "apps/commands.h"
#include "base/error.h"
#include "base/log.h"
#include "model/hf_config.h"
#include "train/run_settings.h"
#include "train/shortlist_file.h"
#include "train/translation.h"

namespace saturate::apps {
namespace {

namespace fs = std::filesystem;

struct NamedFolder {
  std::string name, folder;
};

// "name=folder", or a folder, which is called by its last part.
NamedFolder parse_model(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !fs::exists(text))
    return {text.substr(0, equals), text.substr(equals + 1)};
  fs::path path = fs::path(text).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.filename() == "model") path = path.parent_path();
  return {path.filename().empty() ? "model" : path.filename().string(), text};
}

// Of a run, by the files that it was trained on: train.en and train.pt.
serve::LanguagePair languages_of_run(const std::string& folder) {
  const std::optional<RunConfig> run = train::read_run_settings(folder);
  if (!run || run->data.train.size() != 2) return {};
  const auto ending = [](const std::string& file) {
    fs::path path(file);
    if (path.extension() == ".gz" || path.extension() == ".zst") path.replace_extension();
    const std::string text = path.extension().string();
    const bool letters = std::all_of(text.begin() + (text.empty() ? 0 : 1), text.end(),
                                     [](char c) { return c >= 'a' && c <= 'z'; });
    return letters && (text.size() == 3 || text.size() == 4) ? text.substr(1) : std::string();
  };
  serve::LanguagePair pair{ending(run->data.train[0]), ending(run->data.train[1])};
  if (pair.source.empty() || pair.target.empty() || pair.source == pair.target) return {};
  return pair;
}

serve::LanguagePair given_languages(const std::vector<std::string>& all, const std::string& name) {
  serve::LanguagePair pair;
  for (const std::string& each : all) {
    const size_t equals = each.find('=');
    if (equals == std::string::npos || each.substr(0, equals) == name)
      pair = serve::parse_languages(equals == std::string::npos ? each : each.substr(equals + 1));
  }
  return pair;
}

bool is_language_model(const train::ModelPlace& place) {
  return model::read_model_config(place.folder).kind == model::ModelKind::decoder_only;
}

struct NamedShortlist {
  std::string name, file;  // without a name: of the one translation model
};
NamedShortlist parse_shortlist(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !fs::exists(text))
    return {text.substr(0, equals), text.substr(equals + 1)};
  return {"", text};
}

// Of the model of this name; "": none. need_models_of_shortlists() has looked at all.
std::string shortlist_of(const ServeOptions& o, const std::string& name) {
  std::string file;
  for (const std::string& each : o.shortlists) {
    const NamedShortlist s = parse_shortlist(each);
    if (s.name.empty() || s.name == name) file = s.file;
  }
  return file;
}

void need_models_of_shortlists(const ServeOptions& o) {
  std::vector<std::string> names;
  for (const std::string& each : o.models) {
    const NamedFolder named = parse_model(each);
    if (!is_language_model(train::model_place(named.folder))) names.push_back(named.name);
  }
  for (const std::string& each : o.shortlists) {
    const NamedShortlist s = parse_shortlist(each);
    const bool known = std::ranges::find(names, s.name) != names.end();
    if (s.name.empty() ? names.size() == 1 : known) continue;
    throw Error(
        Errc::invalid_argument, "serve",
        s.name.empty()
            ? fmt::format("--shortlist {} does not say of which of {} translation models it "
                          "is; give NAME={}",
                          s.file, names.size(), s.file)
            : fmt::format("--shortlist {}: no translation model is called {}; there is {}", each,
                          s.name,
                          names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
}

serve::ServedModel load(const ServeOptions& o, const NamedFolder& named) {
  serve::ServedModel served;
  served.name = named.name;
  const train::ModelPlace place = train::model_place(named.folder);
  const std::string& folder = place.folder;
  served.watch = std::make_unique<serve::FolderWatch>(
      place.adapter.empty() ? folder : place.adapter);  // before it is read
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  if (is_language_model(place)) {
    for (const std::string& each : o.adapters) {
      const NamedFolder adapter = parse_model(each);
      served.adapters.push_back(adapter.name);
      hooks.adapters.push_back(train::model_place(folder, adapter.folder).adapter);
    }
  }
  train::LoadedModel model =
      train::load_model(folder, o.model.device, o.model.precision, hooks, place.adapter);
  served.folder = model.folder;
  if (model.config.kind == model::ModelKind::decoder_only) {
    served.chat = o.chat_template.empty() ? &serve::chat_template_of(folder)
                                          : serve::find_chat_template(o.chat_template);
    served.generation = std::make_unique<serve::GenerationEngine>(
        std::move(model), serve::GenerationEngine::Options{.queue = o.queue,
                                                           .sequences = o.sequences,
                                                           .same_bits = o.same_bits,
                                                           .max_length = o.max_length});
    log_info(fmt::format("{}: language model {}, chat template {}", served.name, folder,
                         served.chat->name));
    return served;
  }
  served.languages = given_languages(o.languages, named.name);
  if (served.languages.source.empty()) served.languages = serve::languages_of(folder);
  if (served.languages.source.empty()) served.languages = languages_of_run(named.folder);
  const TranslateConfig decode = resolve_decoding(o.decode, model.translate);
  const size_t many = model.languages.ids.size();
  train::LineOptions lines{.same_bits = o.same_bits};
  if (const std::string file = shortlist_of(o, named.name); !file.empty()) {
    lines.shortlist = train::read_shortlist(file, model.tokenizers.source, model.tokenizers.target,
                                            {.first = o.shortlist_first, .best = o.shortlist_best});
    log_info(fmt::format("{}: shortlist {}", served.name, file));
  }
  served.translation =
      std::make_unique<serve::TranslationEngine>(std::move(model), decode, o.queue, lines);
  if (served.languages.source.empty() && many > 0) {
    log_info(fmt::format("{}: translation model {} of {} languages", served.name, folder, many));
    return served;
  }
  if (served.languages.source.empty()) {
    log_warning(
        fmt::format("{0} does not say its languages, so /translate cannot choose it; give "
                    "--languages {0}=en-pt",
                    served.name));
  }
  log_info(fmt::format("{}: translation model {}, {} to {}", served.name, folder,
                       served.languages.source, served.languages.target));
  return served;
}

// Adapters do not say whose they are in a way that could be relied on.
void need_one_language_model(const ServeOptions& o) {
  const auto count = std::ranges::count_if(o.models, [](const std::string& each) {
    return is_language_model(train::model_place(parse_model(each).folder));
  });
  if (count == 1) return;
  throw Error(Errc::invalid_argument, "serve",
              fmt::format("--adapter needs one language model, and {} are served here; an adapter "
                          "alone is served with --model",
                          count));
}

// Each connection needs a descriptor.
void allow_connections(int64_t connections) {
  rlimit files{};
  const rlim_t needed = static_cast<rlim_t>(connections) + 64;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return;
  const rlim_t given = files.rlim_cur;
  files.rlim_cur = std::min(files.rlim_max, needed);
  if (files.rlim_cur < needed || setrlimit(RLIMIT_NOFILE, &files) != 0) {
    throw Error(Errc::io, "serve",
                fmt::format("{} connections need {} open files and the limit is {}; raise it "
                            "(ulimit -n {}) or give a smaller --connections",
                            connections, needed, given, needed));
  }
}

}  // namespace

int run_serve(const ServeOptions& o) {
  allow_connections(o.connections);
  serve::ServerOptions options;
  if (!o.keys.empty()) options.keys = serve::ApiKeys::read(o.keys);
  options.http = {.host = o.host,
                  .port = static_cast<int>(o.port),
                  .limits = {.body_bytes = static_cast<size_t>(o.max_body)},
                  .connections = o.connections,
                  .answer_seconds = o.timeout,
                  .stop_signals = {SIGTERM, SIGINT},
                  .drain_seconds = o.drain};
  options.json.max_bytes = static_cast<size_t>(o.max_body);
  if (!o.adapters.empty()) need_one_language_model(o);
  if (!o.shortlists.empty()) need_models_of_shortlists(o);
  std::vector<serve::ServedModel> models;
  for (const std::string& each : o.models) models.push_back(load(o, parse_model(each)));
  serve::Server server(std::move(options), std::move(models));
  log_info(fmt::format("listening on http://{}:{}",
                       o.host.find(':') == std::string::npos ? o.host : "[" + o.host + "]",
                       server.port()));
  if (o.keys.empty() && o.host != "127.0.0.1" && o.host != "localhost" && o.host != "::1")
    log_warning(
        fmt::format("whoever reaches {} may use this server; --keys asks for a key", o.host));
  server.run();
  if (server.cut_off() > 0) {
    log_warning(fmt::format("{} requests were cut off", server.cut_off()));
    return kExitMachine;
  }
  log_info("every request was answered");
  return 0;
}

}  // namespace saturate::apps
