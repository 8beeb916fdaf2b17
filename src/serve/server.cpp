// SPDX-License-Identifier: Apache-2.0
#include "serve/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/utf8.h"
#include "serve/openai.h"
#include "serve/page.h"
#include "serve/request_error.h"

namespace saturate::serve {
namespace {

constexpr const char* kForms =
    "send JSON (Content-Type: application/json); forms of name=value go to /translate, "
    "text/plain to /v1/translate, none of them compressed";

// What of a body's form nothing here reads, as its header says it; else "".
std::string unreadable_form(const HttpRequest& request) {
  const std::string_view coding = request.header("content-encoding");
  if (!coding.empty() && coding != "identity")
    return fmt::format("Content-Encoding {:.100}", coding);
  const std::string_view type = request.header("content-type");
  return type.starts_with("multipart/") ? fmt::format("Content-Type {:.100}", type) : "";
}

// A browser's question before a request of another origin (https://fetch.spec.whatwg.org): whether it
// may have this method and these headers. Which origins may ask is told with every answer.
HttpReply preflight(const HttpRequest& request) {
  const std::string_view headers = request.header("access-control-request-headers");
  HttpReply reply{.status = 204, .type = "", .headers = {}};
  reply.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  if (!headers.empty()) reply.headers.emplace_back("Access-Control-Allow-Headers", headers);
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

constexpr std::chrono::seconds kLookAtFolders{5};
constexpr const char* kRetrySeconds = "1";

// What LibreTranslate has and this has not, and why.
constexpr std::pair<std::string_view, const char*> kNotHere[] = {
    {"/detect", "languages are not detected here; give the source's code"},
    {"/translate_file", "files are not translated here; send their text to /translate"},
    {"/suggest", "suggestions are not kept here"},
    {"/frontend/settings", "there are no settings here; /languages lists what is translated"},
};

const char* why_not_here(std::string_view path) {
  for (const auto& [name, why] : kNotHere)
    if (name == path) return why;
  return nullptr;
}

bool is_libretranslate(const std::string& path) {
  return path == "/translate" || path == "/languages" || why_not_here(path) != nullptr;
}

// Paths and the method that each takes.
struct Route {
  std::string_view path, method;
  bool open;               // needs no key
  bool posted_to = false;  // it takes POST too, as LibreTranslate's does and argostranslate asks
};
constexpr Route kRoutes[] = {
    {"/", "GET", true},
    {"/health", "GET", true},
    {"/metrics", "GET", false},
    {"/languages", "GET", false, true},
    {"/v1/models", "GET", false},
    {"/translate", "POST", false},
    {"/v1/translate", "POST", false},
    {"/v1/completions", "POST", false},
    {"/v1/chat/completions", "POST", false},
};

}  // namespace

HttpReply error_reply(const std::string& path, int status, const std::string& message,
                      const ErrorDetail& detail) {
  const Json body =
      is_libretranslate(path) ? Json{{"error", message}} : openai_error(status, message, detail);
  HttpReply reply{.status = status, .body = body.dump() + "\n"};
  if (status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (status == 429 || status == 503) reply.headers.emplace_back("Retry-After", kRetrySeconds);
  return reply;
}

Server::Server(ServerOptions options, std::vector<ServedModel> models)
    : options_(std::move(options)), models_(std::move(models)), changed_(models_.size()) {
  std::set<std::string> seen;
  const auto need_new = [&seen](const std::string& name) {
    if (seen.insert(name).second) return;
    throw Error(Errc::invalid_argument, "serve",
                fmt::format("two models or adapters are called {}; give one another name: --model "
                            "NAME=DIR, --adapter NAME=DIR",
                            name));
  };
  for (const ServedModel& m : models_) {
    need_new(m.name);
    for (const std::string& adapter : m.adapters) need_new(adapter);
  }
  http_ = std::make_unique<HttpServer>(
      options_.http, [this](const Shared& exchange) { receive(exchange); },
      [](const std::string& path, const HttpProblem& problem) {
        return error_reply(path, problem.status, problem.message);
      },
      [this](const std::string& path, int status, double seconds) {
        // Others are counted as one: anybody can invent them, and each would stay in memory.
        const bool known = std::ranges::find(kRoutes, path, &Route::path) != std::end(kRoutes);
        request_metrics_.add(known ? path : "other", status, seconds);
      });
  thread_ = std::thread([this] { work(); });
}

Server::~Server() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  came_.notify_all();
  thread_.join();
  models_.clear();  // their threads call into this
}

bool Server::authorised(const HttpRequest& request) const {
  if (!options_.keys.required()) return true;
  const std::string_view given = request.header("authorization");
  if (given.size() > 7 && (given.starts_with("Bearer ") || given.starts_with("bearer ")))
    return options_.keys.holds(given.substr(7));
  // As LibreTranslate's clients send it: in the query, or in a form, even with GET.
  const bool form = request.header("content-type").starts_with("application/x-www-form-urlencoded");
  for (const std::string_view fields :
       {std::string_view(request.query), form ? std::string_view(request.body) : ""}) {
    for (const auto& [name, value] : parse_form(fields))
      if (name == "api_key") return options_.keys.holds(value);
  }
  return false;
}

void Server::receive(const Shared& exchange) {
  const HttpRequest& r = exchange->request();
  const auto refuse = [&](int status, const std::string& message) {
    exchange->reply(error_reply(r.path, status, message));
  };
  const bool one_model = r.path.starts_with("/v1/models/");
  const std::string_view path = one_model ? std::string_view("/v1/models") : r.path;
  const auto* const route = std::ranges::find(kRoutes, path, &Route::path);
  if (const char* why = why_not_here(path)) return refuse(501, why);
  if (route == std::end(kRoutes))
    return refuse(404, fmt::format("there is no {:.200}; / lists what there is", r.path));
  if (r.method == "OPTIONS" && !allowed_origin(options_.http.origins, r.header("origin")).empty())
    return exchange->reply(preflight(r));
  const bool reads = route->method == "GET";
  if (r.method != route->method && !(reads && r.method == "HEAD") &&
      !(route->posted_to && r.method == "POST")) {
    HttpReply reply = error_reply(r.path, 405, fmt::format("{} takes {}", path, route->method));
    reply.headers.emplace_back("Allow", route->posted_to ? "GET, HEAD, POST"
                                        : reads          ? "GET, HEAD"
                                                         : "POST");
    return exchange->reply(std::move(reply));
  }
  // LibreTranslate's key may stand in the JSON that is read later.
  if (!route->open && r.path != "/translate" && !authorised(r))
    return refuse(401, "a key is needed: Authorization: Bearer KEY");
  if (const std::string form = unreadable_form(r); !reads && !form.empty())
    return refuse(415, fmt::format("{} cannot be read here; {}", form, kForms));
  if (path == "/") {
    return exchange->reply(
        {.body = kPage,
         .type = "text/html; charset=utf-8",
         .headers = {{"Content-Security-Policy",
                      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
                      "connect-src 'self'; base-uri 'none'; form-action 'none'"}}});
  }
  if (path == "/health") return exchange->reply(health());
  if (path == "/metrics") return exchange->reply(metrics());
  if (path == "/languages") return exchange->reply(languages());
  if (path == "/v1/models")
    return exchange->reply(models(one_model ? std::string_view(r.path).substr(11) : ""));
  if (http_->draining()) {
    ++refused_draining_;
    return refuse(503, "the server is ending; ask another one, or again in a while");
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(exchange);
  }
  came_.notify_one();
}

void Server::work() {
  auto look = std::chrono::steady_clock::now() + kLookAtFolders;
  while (true) {
    Shared exchange;
    {
      std::unique_lock lock(mutex_);
      came_.wait_until(lock, look, [&] { return stop_ || !waiting_.empty(); });
      if (stop_) break;
      if (!waiting_.empty()) {
        exchange = std::move(waiting_.front());
        waiting_.pop_front();
      }
    }
    if (std::chrono::steady_clock::now() >= look) {
      look_at_folders();
      look = std::chrono::steady_clock::now() + kLookAtFolders;
    }
    if (exchange && !exchange->cancelled()) answer(exchange);
  }
}

void Server::answer(const Shared& exchange) {
  const std::string& path = exchange->request().path;
  try {
    if (path == "/translate") {
      translate(exchange);
    } else if (path == "/v1/translate") {
      translate_batch(exchange);
    } else {
      complete(exchange, path == "/v1/chat/completions");
    }
  } catch (const RequestError& e) {
    if (e.status == 429) ++refused_full_;
    exchange->reply(error_reply(path, e.status, e.what(), e.detail));
  } catch (const FieldError& e) {
    exchange->reply(error_reply(path, 400, message_of(e.what()), {.param = e.key, .code = {}}));
  } catch (const Error& e) {
    const int status = e.code() == Errc::invalid_argument ? 400 : 500;
    if (status == 500) log_error(fmt::format("{}: {}", path, e.what()));
    exchange->reply(error_reply(path, status, message_of(e.what())));
  } catch (const std::bad_alloc&) {
    log_error(path + ": out of memory");
    exchange->reply(error_reply(path, 503, "out of memory"));
  }
}

// Of one of several folders that are one model it says which.
std::string Server::change_of(const ServedModel& model) {
  for (size_t i = 0; i < model.watches.size(); ++i) {
    const std::string change = model.watches[i].change();
    if (!change.empty()) return model.members.empty() ? change : model.members[i] + ": " + change;
  }
  return {};
}

void Server::look_at_folders() {
  for (size_t i = 0; i < models_.size(); ++i) {
    if (models_[i].watches.empty()) continue;
    const std::string change = change_of(models_[i]);
    const std::lock_guard lock(changed_mutex_);
    if (changed_[i] == change) continue;
    changed_[i] = change;
    const std::string& what = models_[i].members.empty() ? models_[i].folder : models_[i].name;
    if (change.empty()) {
      log_info(fmt::format("{}: its files are those that are served again", what));
    } else {
      log_warning(
          fmt::format("{}: {}; what was loaded is served on, start again to serve what is "
                      "there now",
                      what, change));
    }
  }
}

std::string Server::names(bool translation) const {
  std::string all;
  for (const ServedModel& m : models_)
    if ((m.translation != nullptr) == translation) {
      all += (all.empty() ? "" : ", ") + m.name;
      for (const std::string& adapter : m.adapters) all += ", " + adapter;
    }
  return all.empty() ? "none" : all;
}

namespace {

template <class Is>
ServedModel& find_model(std::vector<ServedModel>& models, const std::string& name, Is is,
                        const std::string& what, const std::string& names,
                        const std::string& instead) {
  ServedModel* only = nullptr;
  int count = 0;
  for (ServedModel& m : models) {
    if (!name.empty() && m.name == name) {
      if (is(m)) return m;
      throw RequestError(400, fmt::format("{} is no {}; ask it at {}", name, what, instead));
    }
    if (!is(m)) continue;
    only = &m;
    ++count;
  }
  if (!name.empty())
    throw RequestError(404,
                       fmt::format("there is no model {:.200}; {}s here: {}", name, what, names),
                       {.param = "model", .code = "model_not_found"});
  if (count == 0) throw RequestError(404, fmt::format("no {} is served here", what));
  if (count > 1)
    throw RequestError(400, fmt::format("model is missing; {}s here: {}", what, names),
                       {.param = "model", .code = {}});
  return *only;
}

}  // namespace

ServedModel& Server::translation_model(const std::string& name) {
  return find_model(
      models_, name, [](const ServedModel& m) { return m.translation != nullptr; },
      "translation model", names(true), "/v1/completions");
}

GenerationTarget Server::generation_model(const std::string& name) {
  for (ServedModel& m : models_) {
    const auto at = std::ranges::find(m.adapters, name);
    if (at != m.adapters.end()) return {m, static_cast<int32_t>(at - m.adapters.begin())};
  }
  return {find_model(
      models_, name, [](const ServedModel& m) { return m.generation != nullptr; }, "language model",
      names(false), "/translate or /v1/translate")};
}

}  // namespace saturate::serve
