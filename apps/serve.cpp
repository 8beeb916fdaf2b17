// SPDX-License-Identifier: Apache-2.0
#include "serve/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "apps/commands.h"
#include "apps/served_models.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "train/ensemble.h"
#include "train/run_settings.h"
#include "train/shortlist_file.h"
#include "train/translation.h"

namespace saturate::apps {
namespace {

namespace fs = std::filesystem;

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

train::LoadedModel load_folders(const ServeOptions& o, const NamedModel& named,
                                const train::LoadHooks& hooks) {
  const std::string &device = o.model.device, &precision = o.model.precision;
  if (!named.is_ensemble()) {
    const train::ModelPlace& place = named.places[0];
    return train::load_model(place.folder, device, precision, hooks, place.adapter);
  }
  std::vector<std::string> paths;
  for (const train::ModelPlace& place : named.places)
    paths.push_back(place.adapter.empty() ? place.folder : place.adapter);
  return train::load_ensemble(paths, named.weights, device, precision, hooks);
}

// What translates as one, for the log: "0.6 runs/a + 0.4 runs/b", or the folder.
std::string told_folders(const train::LoadedModel& m) {
  if (m.others.empty()) return m.folder;
  const std::vector<double> weights = train::ensemble_weights(m);
  std::string told = fmt::format("{:.3g} {}", weights[0], m.folder);
  for (size_t i = 0; i < m.others.size(); ++i)
    told += fmt::format(" + {:.3g} {}", weights[i + 1], m.others[i].folder);
  return told;
}

serve::ServedModel load(const ServeOptions& o, const NamedModel& named) {
  serve::ServedModel served;
  served.name = named.name;
  const std::string& folder = named.places[0].folder;
  for (size_t i = 0; i < named.places.size(); ++i) {  // before they are read
    const train::ModelPlace& place = named.places[i];
    served.watches.emplace_back(place.adapter.empty() ? place.folder : place.adapter);
    if (named.is_ensemble()) served.members.push_back(name_of_folder(named.given[i]));
  }
  train::LoadHooks hooks;
  hooks.ids = o.model.ids;
  hooks.source_language = o.decode.source_language;
  hooks.target_language = o.decode.target_language;
  if (named.is_language_model) {
    for (const std::string& each : o.adapters) {
      const NamedFolder adapter = parse_adapter(each);
      served.adapters.push_back(adapter.name);
      hooks.adapters.push_back(train::model_place(folder, adapter.folder).adapter);
    }
  }
  train::LoadedModel model = load_folders(o, named, hooks);
  const std::string told = told_folders(model);
  const std::string bytes = format_bytes(static_cast<double>(train::weight_bytes(model)));
  served.folder = model.folder;
  if (model.config.kind == model::ModelKind::decoder_only) {
    served.chat = o.chat_template.empty() ? serve::chat_template_of(folder)
                                          : *serve::find_chat_template(o.chat_template);
    served.generation = std::make_unique<serve::GenerationEngine>(
        std::move(model), serve::GenerationEngine::Options{.queue = o.queue,
                                                           .sequences = o.sequences,
                                                           .same_bits = o.same_bits,
                                                           .max_length = o.max_length});
    log_info(fmt::format("{}: language model {}, chat template {}, weights of {}", served.name,
                         told, served.chat->name, bytes));
    return served;
  }
  served.languages = given_languages(o.languages, named.name);
  if (served.languages.source.empty()) served.languages = serve::languages_of(folder);
  if (served.languages.source.empty()) served.languages = languages_of_run(named.given[0]);
  const TranslateConfig decode = resolve_decoding(o.decode, model.translate);
  const size_t many = model.languages.ids.size();
  train::LineOptions lines{.same_bits = o.same_bits};
  if (!named.shortlist.empty()) {
    lines.shortlist =
        train::read_shortlist(named.shortlist, model.tokenizers.source, model.tokenizers.target,
                              {.first = o.shortlist_first, .best = o.shortlist_best});
    log_info(fmt::format("{}: shortlist {}", served.name, named.shortlist));
  }
  served.translation =
      std::make_unique<serve::TranslationEngine>(std::move(model), decode, o.queue, lines);
  if (served.languages.source.empty() && many > 0) {
    log_info(fmt::format("{}: translation model {} of {} languages, weights of {}", served.name,
                         told, many, bytes));
    return served;
  }
  if (served.languages.source.empty()) {
    log_warning(
        fmt::format("{0} does not say its languages, so /translate cannot choose it; give "
                    "--languages {0}=en-pt",
                    served.name));
    log_info(fmt::format("{}: translation model {}, weights of {}", served.name, told, bytes));
    return served;
  }
  log_info(fmt::format("{}: translation model {}, {} to {}, weights of {}", served.name, told,
                       served.languages.source, served.languages.target, bytes));
  return served;
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
  serve::require_http();
  allow_connections(o.connections);
  serve::ServerOptions options;
  if (!o.keys.empty()) options.keys = serve::ApiKeys::read(o.keys);
  options.http = {.host = o.host,
                  .port = static_cast<int>(o.port),
                  .limits = {.body_bytes = static_cast<size_t>(o.max_body)},
                  .origins = o.origins,
                  .connections = o.connections,
                  .answer_seconds = o.timeout,
                  .stop_signals = {SIGTERM, SIGINT},
                  .drain_seconds = o.drain};
  options.json.max_bytes = static_cast<size_t>(o.max_body);
  const std::vector<NamedModel> named = read_models(o);
  std::vector<serve::ServedModel> models;
  for (const NamedModel& each : named) models.push_back(load(o, each));
  serve::Server server(std::move(options), std::move(models));
  log_info(fmt::format("listening on http://{}:{}",
                       o.host.find(':') == std::string::npos ? o.host : "[" + o.host + "]",
                       server.port()));
  if (o.keys.empty() && o.host != "127.0.0.1" && o.host != "localhost" && o.host != "::1")
    log_warning(
        fmt::format("whoever reaches {} may use this server; --keys asks for a key", o.host));
  server.run();
  if (server.cut_off() > 0) {
    log_warning(fmt::format("requests cut off: {}", server.cut_off()));
    return kExitMachine;
  }
  const int64_t left = server.left();
  log_info(left == 0 ? "every request was answered"
                     : fmt::format("every request was answered but {}: {} left before the end of "
                                   "the answer",
                                   left, left == 1 ? "its client" : "their clients"));
  return 0;
}

}  // namespace saturate::apps
