// SPDX-License-Identifier: Apache-2.0
// "response_format" over real sockets.
#include <gtest/gtest.h>

#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

constexpr const char* kPerson =
    R"("response_format":{"type":"json_schema","json_schema":{"name":"person","strict":true,"schema":)"
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":8},"age":{"type":"integer"},)"
    R"("tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":2}},"required":["name","age","tags"],)"
    R"("additionalProperties":false}}})";

// Whether it is what kPerson asks for.
bool is_person(const std::string& text) {
  const auto v = try_parse_json(text);
  if (!v || v->size() != 3 || !(*v)["name"].if_string() || !(*v)["age"].if_int()) return false;
  const Json::Array* tags = (*v)["tags"].if_array();
  return tags && tags->size() <= 2 &&
         std::ranges::all_of(*tags, [](const Json& t) { return t == Json("a") || t == Json("b"); });
}

TEST(ResponseFormat, AnswersMeetTheSchema) {
  const Running s;
  const Json one = json(
      s.post("/v1/completions", completion(std::string(R"("max_tokens":400,"n":8,)") + kPerson)));
  ASSERT_EQ(one["choices"].size(), 8u);
  std::set<std::string> all;
  for (const Json& c : *one["choices"].if_array()) {
    EXPECT_TRUE(is_person(text_of(c["text"]))) << text_of(c["text"]);
    EXPECT_EQ(text_of(c["finish_reason"]), "stop");
    all.insert(text_of(c["text"]));
  }
  EXPECT_GT(all.size(), 4u);
  // A seed gives it again, in a stream too, with others beside it and without.
  const Answer stream = s.post(
      "/v1/completions", completion(std::string(R"("max_tokens":400,"stream":true,)") + kPerson));
  EXPECT_EQ(streamed_text(stream.body), text_of(one["choices"][0]["text"]));
  const Json chat = json(
      s.post("/v1/chat/completions",
             std::string(R"({"model":"lm","seed":3,"messages":[{"role":"user","content":"x"}],)") +
                 kPerson + "}"));
  EXPECT_TRUE(is_person(text_of(chat["choices"][0]["message"]["content"])));
  // Cut off, it is said to be.
  const Json cut =
      json(s.post("/v1/completions", completion(std::string(R"("max_tokens":4,)") + kPerson)));
  EXPECT_EQ(text_of(cut["choices"][0]["finish_reason"]), "length");
  EXPECT_FALSE(try_parse_json(text_of(cut["choices"][0]["text"])));
}

TEST(ResponseFormat, ObjectsOfAnyMembers) {
  const Running s;
  // A frequent token loses weight, so that a random model finds the end of what it begins.
  const Json all = json(s.post(
      "/v1/completions",
      completion(
          R"("max_tokens":8000,"n":4,"frequency_penalty":0.2,"response_format":{"type":"json_object"})")));
  for (const Json& c : *all["choices"].if_array()) {
    if (text_of(c["finish_reason"]) == "length") continue;
    const auto v = try_parse_json(text_of(c["text"]), {.max_depth = 80, .unique_names = false});
    EXPECT_TRUE(v && v->if_object()) << text_of(c["text"]);
  }
  const auto text = [&](const std::string& more) {
    return text_of(json(
        s.post("/v1/completions", completion(R"("max_tokens":20)" + more)))["choices"][0]["text"]);
  };
  EXPECT_EQ(text(""), text(R"(,"response_format":{"type":"text"})"));
  EXPECT_TRUE(text(R"(,"response_format":{"type":"json_object"})").find('{') != std::string::npos);
}

// As llama.cpp's server and others have it.
TEST(ResponseFormat, ASchemaWithoutAName) {
  const Running s;
  for (const char* format : {R"({"type":"json_object","schema":{"const":"42"}})",
                             R"({"type":"json_schema","json_schema":{"schema":{"const":"42"}}})"}) {
    const Json said = json(s.post(
        "/v1/completions",
        completion(std::string(R"("max_tokens":400,"response_format":)") + format)))["choices"][0];
    EXPECT_EQ(try_parse_json(text_of(said["text"])), Json("42")) << format;
  }
}

TEST(ToolCalls, AreMadeWhereTheyMust) {
  struct Setup setup;
  setup.chat = "chatml";
  const Running s(setup);
  const auto body = [](const std::string& more) {
    return R"({"model":"lm","seed":3,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",)"
           R"("function":{"name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer"},)"
           R"("how":{"enum":["up","down"]}},"required":["a","how"]}}}])" +
           more + "}";
  };
  for (const char* choice : {R"("required")", R"({"type":"function","function":{"name":"add"}})"}) {
    const std::string more = std::string(R"(,"n":3,"tool_choice":)") + choice;
    const Json whole = json(s.post("/v1/chat/completions", body(more)))["choices"];
    const Answer stream = s.post("/v1/chat/completions", body(more + R"(,"stream":true)"));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(text_of(whole[i]["finish_reason"]), "tool_calls");
      const Json& message = whole[i]["message"];
      EXPECT_TRUE(message["content"].is_null());
      ASSERT_EQ(message["tool_calls"].size(), 1u);
      const Json& call = message["tool_calls"][0];
      EXPECT_EQ(text_of(call["type"]), "function");
      EXPECT_EQ(text_of(call["function"]["name"]), "add");
      const std::string arguments = text_of(call["function"]["arguments"]);
      const auto v = try_parse_json(arguments);
      ASSERT_TRUE(v) << arguments;
      EXPECT_TRUE((*v)["a"].if_int() != nullptr && (*v)["how"].if_string() != nullptr) << arguments;
      // A stream has the same call, in one piece, and ends as the answer does.
      const std::string head = R"("choices":[{"index":)" + std::to_string(i) + ",";
      std::string events;
      for (size_t at = 0; (at = stream.body.find(head, at)) != std::string::npos; ++at)
        events += stream.body.substr(at, stream.body.find("\n\n", at) - at);
      EXPECT_NE(events.find(R"("arguments":)" + Json(arguments).dump()), std::string::npos)
          << events;
      EXPECT_NE(events.find(R"("finish_reason":"tool_calls")"), std::string::npos);
    }
  }
  // Where none must be made a random model makes none, and says what it says, in a stream too.
  const Json free = json(s.post("/v1/chat/completions", body(R"(,"max_tokens":60)")))["choices"][0];
  EXPECT_TRUE(free["message"]["tool_calls"].is_null());
  const Answer stream = s.post("/v1/chat/completions", body(R"(,"max_tokens":60,"stream":true)"));
  EXPECT_EQ(streamed_text(stream.body), text_of(free["message"]["content"]));
  const Json cut = json(s.post("/v1/chat/completions",
                               body(R"(,"max_tokens":5,"tool_choice":"required")")))["choices"][0];
  EXPECT_EQ(text_of(cut["finish_reason"]), "length");
  EXPECT_TRUE(cut["message"]["tool_calls"].is_null());
  for (const auto& [more, says] :
       {std::pair{R"(,"tool_choice":"required","ignore_eos":true)", "cannot go with tool_choice"},
        {R"(,"tool_choice":"some")", "none, auto, required"}}) {
    const Answer a = s.post("/v1/chat/completions", body(more));
    EXPECT_EQ(a.status, 400);
    EXPECT_NE(error_of(a).find(says), std::string::npos) << error_of(a);
  }
}

// The forms of other models: one call, and a list of them.
TEST(ToolCalls, AreMadeInTheFormOfTheTemplate) {
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
      R"("properties":{"how":{"enum":["up","down"]}},"required":["how"]}}}])";
  const auto body = [&](const std::string& more) {
    return R"({"model":"lm","seed":3,"messages":[{"role":"user","content":"x"}],)" + tools + more +
           "}";
  };
  for (const char* name :
       {"llama3.1", "mistral-v3", "mistral-nemo", "mistral-v7", "mistral-v11", "mistral-v13"}) {
    SCOPED_TRACE(name);
    struct Setup setup;
    setup.chat = name;
    const Running s(setup);
    const std::string more = R"(,"tool_choice":"required","max_tokens":2000)";
    const Json whole = json(s.post("/v1/chat/completions", body(more)))["choices"][0];
    EXPECT_EQ(text_of(whole["finish_reason"]), "tool_calls");
    const Json& calls = whole["message"]["tool_calls"];
    const bool list = std::string_view(name).starts_with("mistral");
    ASSERT_GE(calls.size(), 1u);
    if (!list) {
      EXPECT_EQ(calls.size(), 1u);
    }
    const Answer stream = s.post("/v1/chat/completions", body(more + R"(,"stream":true)"));
    for (const Json& call : *calls.if_array()) {
      EXPECT_EQ(text_of(call["function"]["name"]), "add");
      if (list) {
        EXPECT_EQ(text_of(call["id"]).size(), 9u);
      }
      EXPECT_NE(stream.body.find(call["function"].dump()), std::string::npos) << stream.body;
    }
    // They go back as messages, with what came of them.
    Json answered{Json::Array{}};
    answered.push_back({{"role", "user"}, {"content", "x"}});
    answered.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", calls}});
    for (const Json& call : *calls.if_array())
      answered.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "1"}});
    const Json next{{"model", "lm"}, {"messages", answered}, {"max_tokens", 4}};
    EXPECT_EQ(s.post("/v1/chat/completions", next.dump()).status, 200);
    const Json twice{
        {"model", "lm"},
        {"max_tokens", 4},
        {"messages", Json::Array{Json{{"role", "user"}, {"content", "x"}},
                                 Json{{"role", "assistant"},
                                      {"tool_calls", Json::Array{calls[0], calls[0]}}}}}};
    const Answer two = s.post("/v1/chat/completions", twice.dump());
    EXPECT_EQ(two.status, list ? 200 : 400);
    if (!list) {
      EXPECT_EQ(text_of(json(two)["error"]["param"]), "messages");
    }
  }
  struct Setup setup;
  setup.chat = "llama3";
  const Running s(setup);
  const Answer none = s.post("/v1/chat/completions", body(""));
  EXPECT_EQ(none.status, 400);
  EXPECT_EQ(text_of(json(none)["error"]["param"]), "tools");
  EXPECT_NE(error_of(none).find("llama3.1"), std::string::npos) << error_of(none);
}

TEST(ResponseFormat, RefusesAndSaysWhere) {
  const Running s;
  const struct {
    const char *more, *says, *param;
  } cases[] = {
      {R"("response_format":"json")", "an object", "response_format"},
      {R"("response_format":{"type":"xml"})", "json_object", "response_format"},
      {R"("response_format":{"type":"json_schema"})", "json_schema is missing", "response_format"},
      {R"("response_format":{"type":"json_object","schema":123})", "it must be a JSON Schema",
       "response_format"},
      {R"("response_format":{"type":"json_object","schema":{"type":"hiccup"}})",
       "response_format.schema.type", "response_format"},
      {R"("response_format":{"type":"text","schema":{}})", "schema", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})",
       "schema is missing", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"properties":{"b":{"type":"integer","not":{}}}}}})",
       "response_format.json_schema.schema.properties.b.not: it is not supported",
       "response_format"},
      {R"("ignore_eos":true,"response_format":{"type":"json_object"})", "cannot go with",
       "ignore_eos"},
      {R"("min_tokens":2,"response_format":{"type":"json_object"})", "cannot go with",
       "min_tokens"},
      {R"("no_repeat_ngram_size":2,"response_format":{"type":"json_object"})", "cannot go with",
       "no_repeat_ngram_size"}};
  for (const auto& c : cases) {
    const Answer a = s.post("/v1/completions", completion(c.more));
    EXPECT_EQ(a.status, 400) << c.more;
    EXPECT_NE(error_of(a).find(c.says), std::string::npos) << c.more << " -> " << error_of(a);
    EXPECT_EQ(text_of(json(a)["error"]["param"]), c.param) << c.more;
  }
}

}  // namespace
}  // namespace saturate::serve
