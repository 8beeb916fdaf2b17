// SPDX-License-Identifier: Apache-2.0
// Models behind HTTP. The event thread reads requests and answers those that need no model; one thread
// reads bodies and makes tokens; each model has its own, which answer.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "serve/api_keys.h"
#include "serve/chat_template.h"
#include "serve/folder_watch.h"
#include "serve/generation_engine.h"
#include "serve/http_server.h"
#include "serve/libretranslate.h"
#include "serve/metrics.h"
#include "serve/request_error.h"
#include "serve/response_format.h"
#include "serve/translation_engine.h"

namespace saturate::serve {

// A model and the name that requests call it by; one of the two engines.
struct ServedModel {
  std::string name, folder;
  std::unique_ptr<TranslationEngine> translation;
  LanguagePair languages;  // of a translation model; may be empty
  std::unique_ptr<GenerationEngine> generation;
  std::vector<std::string> adapters = {};  // of a language model: names that requests call them by
  std::optional<ChatTemplate> chat;        // of a language model
  std::unique_ptr<ResponseFormats> formats = {};  // of a language model, once it was asked for
  std::vector<FolderWatch> watches = {};          // of each folder; may be none
  // What each of several translation models that are one is called (train/ensemble.h); else none.
  std::vector<std::string> members = {};

  const train::LoadedModel& loaded() const {
    return translation ? translation->model() : generation->model();
  }
  EngineCounts counts() const { return translation ? translation->counts() : generation->counts(); }
};

// What a request for a language model names: it, or one of its adapters by number.
struct GenerationTarget {
  ServedModel& model;
  int32_t adapter = -1;
};

// How a request's lines name their languages to a multilingual model.
struct LanguageFrame {
  std::optional<data::TextFrame> source;  // none: as the model was loaded
  std::vector<int32_t> target;
};

struct ServerOptions {
  HttpServerOptions http;
  ApiKeys keys = {};
  JsonLimits json = {};
};

/// Answers requests until it is drained. Endpoints: docs/guide/serve.md.
class Server {
 public:
  // Listens from here on. Errors: those of HttpServer; invalid_argument for two models of one name.
  Server(ServerOptions options, std::vector<ServedModel> models);
  ~Server();  // run() has returned
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const noexcept { return http_->port(); }
  void run() { http_->run(); }
  void drain() { http_->drain(); }  // from any thread, as the next
  void stop() { http_->stop(); }
  int64_t cut_off() const noexcept { return http_->cut_off(); }
  int64_t left() const noexcept { return http_->left(); }

 private:
  using Shared = std::shared_ptr<Exchange>;

  void receive(const Shared& exchange);  // event thread
  bool authorised(const HttpRequest& request) const;
  void work();
  void answer(const Shared& exchange);  // and from here on the working thread
  void translate(const Shared& exchange);
  void translate_batch(const Shared& exchange);
  void translate_lines(const Shared& exchange);
  void complete(const Shared& exchange, bool chat);
  void submit(ServedModel& model, TranslationJob job);
  void look_at_folders();
  static std::string change_of(const ServedModel& model);

  HttpReply health() const;  // these from any thread
  HttpReply metrics() const;
  HttpReply models(std::string_view name) const;
  HttpReply languages() const;

  ServedModel& translation_model(const std::string& name);
  GenerationTarget generation_model(const std::string& name);
  ServedModel& model_for(const TranslateRequest& request);
  void name_languages(const ServedModel& model, const std::string& source,
                      const std::string& target, LanguageFrame& frame) const;
  std::string names(bool translation) const;

  const ServerOptions options_;
  std::vector<ServedModel> models_;
  std::vector<std::string> changed_;  // of each model's folder; by changed_mutex_
  mutable std::mutex changed_mutex_;
  RequestMetrics request_metrics_;
  Histogram first_token_;
  std::atomic<uint64_t> refused_full_{0}, refused_draining_{0}, next_id_{1};
  const std::chrono::system_clock::time_point started_ = std::chrono::system_clock::now();

  std::mutex mutex_;  // of the two below
  std::condition_variable came_;
  std::deque<Shared> waiting_;
  bool stop_ = false;
  std::unique_ptr<HttpServer> http_;
  std::thread thread_;
};

// An error in the form that clients of this path read.
HttpReply error_reply(const std::string& path, int status, const std::string& message,
                      const ErrorDetail& detail = {});

}  // namespace saturate::serve
