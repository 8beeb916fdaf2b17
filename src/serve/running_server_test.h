// SPDX-License-Identifier: Apache-2.0
// A server of random models in a thread of its own, and what tests read of its answers.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/testing/temp_folder.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "serve/client_test.h"
#include "serve/server.h"
#include "train/random_model_test.h"

namespace saturate::serve {

inline constexpr int64_t kLongest = 16384;  // of the language model: seconds of work

inline TranslateConfig decoding() {
  TranslateConfig c;
  c.beam = 2;
  c.max_length_factor = 1;
  c.max_length_offset = 6;
  return c;
}

// The language model with both, the second of which does something.
inline train::LoadedModel adapted_model() {
  train::LoadedModel m =
      train::random_model(model::ModelKind::decoder_only, kLongest, train::two_adapters());
  const ParameterId b = m.store->find(train::two_adapters().linears[0].b_name(1));
  std::vector<float> values(static_cast<size_t>(m.store->spec(b).size()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = i % 3 == 0 ? 2.0f : -1.0f;
  const Stream stream{Device{}};
  m.store->set(stream, b, values.data());
  return m;
}

struct Setup {
  HttpServerOptions http = {.port = 0};
  std::string keys = {};
  int64_t queue = 4096;
  bool adapters = false;
  const char* chat = "plain";
  bool shortlist = false;  // of some bytes for each
};

// On packed weights, which a shortlist needs.
inline train::LoadedModel packed_model() {
  train::LoadedModel m = train::random_model(model::ModelKind::encoder_decoder, 64);
  m.store->pack(kernels::PackedType::f32);
  return m;
}

inline std::shared_ptr<const model::Shortlist> some_bytes() {
  auto list = std::make_shared<model::Shortlist>();
  for (int32_t id = 2; id < 258; ++id)
    list->add({id}, std::vector<int32_t>{id, (id * 7 + 5) % 256 + 2, (id * 11 + 3) % 256 + 2});
  return list;
}

// A server in a thread of its own.
class Running {
 public:
  explicit Running(Setup setup = {}) {
    std::vector<ServedModel> models(2);
    models[0].name = "mt";
    models[0].translation = std::make_unique<TranslationEngine>(
        setup.shortlist ? packed_model()
                        : train::random_model(model::ModelKind::encoder_decoder, 64),
        decoding(), setup.queue,
        train::LineOptions{.shortlist = setup.shortlist ? some_bytes() : nullptr});
    models[0].languages = {"en", "pt"};
    models[1].name = "lm";
    models[1].generation = std::make_unique<GenerationEngine>(
        setup.adapters ? adapted_model()
                       : train::random_model(model::ModelKind::decoder_only, kLongest),
        GenerationEngine::Options{.queue = setup.queue, .sequences = 2, .max_length = kLongest});
    if (setup.adapters) models[1].adapters = {"idle", "other"};
    models[1].chat = *find_chat_template(setup.chat);
    setup.http.port = 0;
    ServerOptions options{.http = setup.http};
    if (!setup.keys.empty()) {
      std::ofstream(folder_.path() + "/keys") << setup.keys;
      std::filesystem::permissions(folder_.path() + "/keys", std::filesystem::perms::owner_read);
      options.keys = ApiKeys::read(folder_.path() + "/keys");
    }
    server.emplace(std::move(options), std::move(models));
    thread_ = std::thread([this] { server->run(); });
  }
  ~Running() {
    if (!thread_.joinable()) return;
    server->stop();
    thread_.join();
  }
  void join() { thread_.join(); }

  Client client() const { return Client(server->port()); }
  Answer get(const std::string& path) const { return client().ask("GET " + path, "", {}); }
  Answer post(const std::string& path, const std::string& body,
              const std::string& type = "application/json", const std::string& more = "") const {
    return client().ask("POST " + path, body, "Content-Type: " + type + "\r\n" + more);
  }
  double metric(const std::string& name) const {
    const std::string text = get("/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  std::optional<Server> server;

 private:
  testing::TempFolder folder_;
  std::thread thread_;
};

inline Json json(const Answer& a) {
  const std::optional<Json> value = try_parse_json(a.body);
  EXPECT_TRUE(value) << a.body;
  return value.value_or(Json());
}

inline std::string text_of(const Json& j) { return j.if_string() == nullptr ? "" : *j.if_string(); }

inline std::string error_of(const Answer& a) {
  const Json body = json(a);
  return body["error"].if_string() != nullptr ? text_of(body["error"])
                                              : text_of(body["error"]["message"]);
}

// What a stream of completions adds up to, and how it ended.
inline std::string streamed_text(const std::string& body, std::string* reason = nullptr) {
  std::string all;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
  for (size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
    const Json piece = try_parse_json(body.substr(at + 6, body.find("\n\n", at) - at - 6)).value();
    const Json& choice = piece["choices"][0];
    all += text_of(choice["text"]) + text_of(choice["delta"]["content"]);
    if (reason != nullptr && choice["finish_reason"].if_string() != nullptr)
      *reason = text_of(choice["finish_reason"]);
  }
  return all;
}

inline std::string completion(const std::string& more) {
  return R"({"model":"lm","prompt":"to be","seed":7,)" + more + "}";
}

}  // namespace saturate::serve
