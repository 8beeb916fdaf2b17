// SPDX-License-Identifier: Apache-2.0
// What a server says of itself.
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>

#include "serve/server.h"
#include "train/ensemble.h"

namespace saturate::serve {
namespace {

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double seconds_of(std::chrono::system_clock::time_point t) {
  return std::chrono::duration<double>(t.time_since_epoch()).count();
}

}  // namespace

HttpReply Server::health() const {
  std::string status = http_->draining() ? "draining" : "ok";
  Json broken{Json::Array{}}, changed{Json::Array{}};
  for (size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].counts().broken) {
      status = "broken";
      broken.push_back(models_[i].name);
    }
    const std::lock_guard lock(changed_mutex_);
    if (!changed_[i].empty())
      changed.push_back({{"model", models_[i].name}, {"change", changed_[i]}});
  }
  Json body = {{"status", status}};
  if (broken.size() > 0) body["broken"] = broken;
  if (changed.size() > 0) body["changed_on_disk"] = changed;
  HttpReply reply{.status = status == "ok" ? 200 : 503, .body = body.dump() + "\n"};
  if (reply.status == 503) reply.headers.emplace_back("Retry-After", "1");
  return reply;
}

HttpReply Server::models(std::string_view name) const {
  Json list{Json::Array{}};
  for (const ServedModel& m : models_) {
    Json entry = {{"id", m.name},
                  {"object", "model"},
                  {"created", static_cast<int64_t>(seconds_of(started_))},
                  {"owned_by", "saturate"},
                  {"kind", m.translation ? "translation" : "language"}};
    if (m.translation) {
      entry["source"] = m.languages.source;
      entry["target"] = m.languages.target;
      if (!m.members.empty()) {
        const std::vector<double> weights = train::ensemble_weights(m.loaded());
        Json members{Json::Array{}};
        for (size_t i = 0; i < m.members.size(); ++i)
          members.push_back({{"id", m.members[i]}, {"weight", weights[i]}});
        entry["ensemble"] = std::move(members);
      }
    } else {
      entry["chat_template"] = m.chat->name;
      entry["max_length"] = m.generation->max_length();
    }
    if (m.name == name) return {.body = entry.dump() + "\n"};
    list.push_back(entry);
    entry["parent"] = m.name;
    for (const std::string& adapter : m.adapters) {
      entry["id"] = adapter;
      if (adapter == name) return {.body = entry.dump() + "\n"};
      list.push_back(entry);
    }
  }
  if (!name.empty())
    return error_reply("/v1/models", 404, fmt::format("there is no model {:.200}", name),
                       {.param = "model", .code = "model_not_found"});
  return {.body = Json{{"object", "list"}, {"data", list}}.dump() + "\n"};
}

HttpReply Server::languages() const {
  std::map<std::string, std::set<std::string>> targets;
  for (const ServedModel& m : models_) {
    if (m.translation && !m.languages.source.empty())
      targets[m.languages.source].insert(m.languages.target);
    if (!m.translation || !m.translation->model().languages.needs_source()) continue;
    const train::Languages& l = m.translation->model().languages;
    std::set<std::string> all;
    for (const auto& [code, id] : l.ids)
      if (!l.target_is_start || code == l.target) all.insert(train::Languages::name_of(code));
    for (const auto& [code, id] : l.ids)
      targets[train::Languages::name_of(code)].insert(all.begin(), all.end());
  }
  // A language that is only written has an entry as well, so that its name is known.
  std::set<std::string> written;
  for (const auto& [source, list] : targets) written.insert(list.begin(), list.end());
  for (const std::string& code : written) targets[code];
  Json all{Json::Array{}};
  for (const auto& [code, list] : targets) {
    Json to{Json::Array{}};
    for (const std::string& target : list) to.push_back(target);
    all.push_back({{"code", code}, {"name", language_name(code)}, {"targets", to}});
  }
  return {.body = all.dump() + "\n"};
}

HttpReply Server::metrics() const {
  std::string out;
  request_metrics_.write(out);
  write_metric(out, "saturate_first_token_seconds", "histogram",
               "From a whole request of a language model to its first token.");
  first_token_.write(out, "saturate_first_token_seconds", "");
  const auto of_models = [&](const char* name, const char* type, const char* help, auto value) {
    write_metric(out, name, type, help);
    for (const ServedModel& m : models_)
      write_sample(out, name, "model=" + quoted_label(m.name),
                   static_cast<double>(value(m.counts())));
  };
  of_models("saturate_waiting", "gauge", "Lines or sequences in the queue.",
            [](const EngineCounts& c) { return c.waiting; });
  of_models("saturate_running", "gauge", "Lines or sequences that are computed.",
            [](const EngineCounts& c) { return c.running; });
  of_models("saturate_done_total", "counter", "Lines or sequences computed.",
            [](const EngineCounts& c) { return c.done; });
  of_models("saturate_steps_total", "counter", "Steps of decoding, of all threads.",
            [](const EngineCounts& c) { return c.steps; });
  of_models("saturate_tokens_in_total", "counter", "Tokens of sources and prompts.",
            [](const EngineCounts& c) { return c.tokens_in; });
  of_models("saturate_tokens_out_total", "counter", "Tokens generated by language models.",
            [](const EngineCounts& c) { return c.tokens_out; });
  of_models("saturate_broken", "gauge", "1 for a model that is served no more.",
            [](const EngineCounts& c) { return c.broken ? 1 : 0; });
  write_metric(out, "saturate_weight_bytes", "gauge", "Memory of a model's weights.");
  for (const ServedModel& m : models_)
    write_sample(out, "saturate_weight_bytes", "model=" + quoted_label(m.name),
                 static_cast<double>(train::weight_bytes(m.loaded())));
  write_metric(out, "saturate_changed_on_disk", "gauge",
               "1 where the folder is no longer what was loaded.");
  for (size_t i = 0; i < models_.size(); ++i) {
    const std::lock_guard lock(changed_mutex_);
    write_sample(out, "saturate_changed_on_disk", "model=" + quoted_label(models_[i].name),
                 changed_[i].empty() ? 0 : 1);
  }
  const HttpCounts http = http_->counts();
  const auto one = [&](const char* name, const char* type, const char* help, double value) {
    write_metric(out, name, type, help);
    write_sample(out, name, "", value);
  };
  one("saturate_connections", "gauge", "Open connections.", static_cast<double>(http.connections));
  one("saturate_open_requests", "gauge", "Requests without an answer.",
      static_cast<double>(http.open_exchanges));
  one("saturate_connections_total", "counter", "Connections accepted.",
      static_cast<double>(http.accepted));
  one("saturate_connections_refused_total", "counter", "Connections beyond the limit.",
      static_cast<double>(http.refused));
  write_metric(out, "saturate_refused_total", "counter", "Requests refused, by reason.");
  write_sample(out, "saturate_refused_total", "reason=\"queue\"",
               static_cast<double>(refused_full_));
  write_sample(out, "saturate_refused_total", "reason=\"draining\"",
               static_cast<double>(refused_draining_));
  one("saturate_draining", "gauge", "1 while the server ends.", http_->draining() ? 1 : 0);
  one("process_start_time_seconds", "gauge", "Seconds since 1970.", seconds_of(started_));
  one("process_resident_memory_bytes", "gauge", "Resident memory.", resident_bytes());
  return {.body = out, .type = "text/plain; version=0.0.4; charset=utf-8"};
}

}  // namespace saturate::serve
