// SPDX-License-Identifier: Apache-2.0
// What clients of others send (docs/guide/serve.md, "Read by clients of others"), over real sockets.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

// The pieces of a stream.
std::vector<Json> pieces(const Answer& a) {
  std::vector<Json> all;
  for (size_t at = 0; (at = a.body.find("data: {", at)) != std::string::npos; ++at)
    all.push_back(try_parse_json(a.body.substr(at + 6, a.body.find("\n\n", at) - at - 6)).value());
  return all;
}

// guidellm, and vLLM's own clients.
TEST(OthersClients, UsageComesWithEachPiece) {
  const Running s;
  const auto ask = [&](const std::string& options) {
    return pieces(
        s.post("/v1/completions", completion(R"("max_tokens":9,"ignore_eos":true,"stream":true,)"
                                             R"("stream_options":{)" +
                                             options + "}")));
  };
  const std::vector<Json> all = ask(R"("include_usage":true,"continuous_usage_stats":true)");
  ASSERT_GT(all.size(), 2u);
  int64_t last = 0;
  for (const Json& piece : all) {
    const Json& usage = piece["usage"];
    ASSERT_NE(usage["completion_tokens"].if_int(), nullptr) << piece.dump();
    EXPECT_GE(*usage["completion_tokens"].if_int(), std::max<int64_t>(last, 1));
    EXPECT_EQ(*usage["prompt_tokens"].if_int(), 5);
    last = *usage["completion_tokens"].if_int();
  }
  EXPECT_EQ(last, 9);
  EXPECT_EQ(*all.front()["usage"]["completion_tokens"].if_int(), 1);
  // Without the other option it says nothing, as vLLM has it.
  for (const Json& piece : ask(R"("continuous_usage_stats":true)"))
    EXPECT_TRUE(piece["usage"].is_null());
}

// smolagents has "Observation:" with each request, forced calls and formats too.
TEST(OthersClients, StringsThatStopGoWithJson) {
  struct Setup setup;
  setup.chat = "chatml";
  const Running s(setup);
  const auto ask = [&](const std::string& stop, const std::string& more) {
    return json(s.post("/v1/chat/completions",
                       R"({"model":"lm","seed":3,"messages":[{"role":"user","content":"x"}],)"
                       R"("stop":[")" +
                           stop + "\"]," + more + "}"))["choices"][0];
  };
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":["up"]}}})";
  const std::string call =
      R"("tools":[{"type":"function","function":{"name":"add"}}],"tool_choice":"required")";
  const Json whole = ask("Observation:", format);
  EXPECT_EQ(text_of(whole["finish_reason"]), "stop");
  EXPECT_EQ(try_parse_json(text_of(whole["message"]["content"])), Json("up"));
  const Json called = ask("Observation:", call);
  EXPECT_EQ(text_of(called["finish_reason"]), "tool_calls");
  EXPECT_EQ(text_of(called["message"]["tool_calls"][0]["function"]["name"]), "add");
  // One that does come cuts the text there, and what is cut is no call.
  const Json cut = ask("p", format);
  EXPECT_EQ(text_of(cut["finish_reason"]), "stop");
  EXPECT_TRUE(text_of(cut["message"]["content"]).ends_with("\"u"));
  const Json no_call = ask("add", call);
  EXPECT_EQ(text_of(no_call["finish_reason"]), "stop");
  EXPECT_TRUE(no_call["message"]["tool_calls"].is_null());
  EXPECT_TRUE(text_of(no_call["message"]["content"]).find("name") != std::string::npos);
}

// Agents of LangChain, pydantic-ai, OpenAI, AutoGen and agno have both where their last answer has a form.
TEST(OthersClients, AFormatGoesWithTools) {
  const std::string ask =
      R"({"model":"lm","seed":3,"n":24,"max_tokens":400,"messages":[{"role":"user","content":"x"}],)"
      R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object",)"
      R"("properties":{"how":{"enum":["up","down"]}},"required":["how"]}}}],)"
      R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"object",)"
      R"("properties":{"city":{"enum":["Faro","Porto"]}},"required":["city"]}}})";
  // Bytes' ids of the random model; without a push it hardly begins a mark.
  const auto likely = [](char c) {
    return R"(,"logit_bias":{")" + std::to_string(static_cast<int>(c) + 2) + R"(":1})";
  };
  const std::pair<const char*, char> templates[] = {
      {"chatml", '<'}, {"llama3.1", 'n'}, {"mistral-v3", '['}};
  for (const auto& [name, first] : templates) {
    SCOPED_TRACE(name);
    struct Setup setup;
    setup.chat = name;
    const Running s(setup);
    const std::string body = ask + likely(first);
    const Json all = json(s.post("/v1/chat/completions", body + "}"))["choices"];
    ASSERT_EQ(all.size(), 24u);
    int values = 0, calls = 0;
    for (const Json& choice : *all.if_array()) {
      const Json& message = choice["message"];
      if (const Json::Array* made = message["tool_calls"].if_array()) {
        ++calls;
        EXPECT_EQ(text_of(choice["finish_reason"]), "tool_calls");
        EXPECT_TRUE(message["content"].is_null()) << message.dump();
        for (const Json& call : *made) {
          const auto v = try_parse_json(text_of(call["function"]["arguments"]));
          EXPECT_TRUE(v && (*v)["how"].if_string() != nullptr) << call.dump();
        }
      } else if (text_of(choice["finish_reason"]) == "stop") {
        ++values;
        const auto v = try_parse_json(text_of(message["content"]));
        EXPECT_TRUE(v && (*v)["city"].if_string() != nullptr) << message.dump();
      }
    }
    EXPECT_GT(values, 0);
    EXPECT_GT(calls, 0);
    // A stream says the same.
    const Answer stream = s.post("/v1/chat/completions", body + R"(,"stream":true})");
    std::map<int64_t, std::string> said;
    std::map<int64_t, Json> called;
    for (const Json& piece : pieces(stream)) {
      const Json& choice = piece["choices"][0];
      const int64_t index = *choice["index"].if_int();
      said[index] += text_of(choice["delta"]["content"]);
      if (choice["delta"]["tool_calls"].size() > 0) called[index] = choice["delta"]["tool_calls"];
    }
    for (int64_t i = 0; i < 24; ++i) {
      const Json& message = all[static_cast<size_t>(i)]["message"];
      EXPECT_EQ(said[i], text_of(message["content"]));
      EXPECT_EQ(called[i].size(), message["tool_calls"].size());
    }
  }
}

// What cannot be held is any object where no call must come, as without a format; and is refused where one must.
TEST(OthersClients, AFormatGoesWithToolsThatCannotBeHeld) {
  struct Setup setup;
  setup.chat = "chatml";
  const Running s(setup);
  const std::string ask =
      R"({"model":"lm","max_tokens":4,"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function",)"
      R"("function":{"name":"add","parameters":{"type":"object","not":{}}}}],)"
      R"("response_format":{"type":"json_object"})";
  EXPECT_EQ(s.post("/v1/chat/completions", ask + "}").status, 200);
  const Answer forced = s.post("/v1/chat/completions", ask + R"(,"tool_choice":"required"})");
  EXPECT_EQ(forced.status, 400);
  EXPECT_NE(error_of(forced).find("tools[0].function.parameters.not"), std::string::npos);
}

// Both POST with fields in other places than LibreTranslate's own page has them.
TEST(OthersClients, DeepTranslatorAndArgosAreUnderstood) {
  const Running s;
  const Json want = json(s.post("/translate", R"({"q":"a b","source":"en","target":"pt"})"));
  const Answer in_address = s.client().ask_raw(
      "POST /translate?q=a+b&source=en&target=pt&format=text&api_key=x HTTP/1.1\r\nHost: h\r\n"
      "Content-Length: 0\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(in_address.status, 200) << in_address.body;
  EXPECT_EQ(json(in_address), want);
  EXPECT_EQ(error_of(s.post("/translate", "")), "the body is empty; send JSON");
  const Answer posted = s.post("/languages", "api_key=x", "application/x-www-form-urlencoded");
  EXPECT_EQ(posted.status, 200);
  EXPECT_EQ(posted.body, s.get("/languages").body);
  // What is not there says so as LibreTranslate's errors do: a string.
  for (const char* path : {"/detect", "/suggest", "/translate_file"}) {
    const Answer none = s.post(path, "q=x", "application/x-www-form-urlencoded");
    EXPECT_EQ(none.status, 501) << path;
    EXPECT_NE(json(none)["error"].if_string(), nullptr) << path;
  }
  EXPECT_EQ(s.get("/frontend/settings").status, 501);
}

// Values that change nothing are taken, others of the same fields refused.
TEST(OthersClients, FieldsOfOtherServersThatChangeNothing) {
  const Running s;
  const auto chat = [&](const std::string& more) {
    return s.post(
        "/v1/chat/completions",
        R"({"model":"lm","seed":3,"max_tokens":8,"messages":[{"role":"user","content":"x"}],)" +
            more + "}");
  };
  const auto said = [&](const std::string& more) {
    const Answer a = chat(more);
    EXPECT_EQ(a.status, 200) << more << a.body;
    return text_of(json(a)["choices"][0]["message"]["content"]);
  };
  const std::string plain = said(R"("n":1)");
  for (
      const char* more :
      {R"("skip_special_tokens":true,"spaces_between_special_tokens":true,"detokenize":true)",
       R"("add_generation_prompt":true,"continue_final_message":false,"documents":[],"priority":0)",
       R"("use_beam_search":false,"length_penalty":1.0,"include_stop_str_in_output":false)",
       R"("stop_token_ids":[],"return_token_ids":false,"typical_p":1,"cache_prompt":true)",
       R"("reasoning_effort":"none")", R"("reasoning_effort":"xhigh")",
       R"("chat_template_kwargs":{"enable_thinking":false,"thinking":true,"other":null})",
       R"("chat_template_kwargs":{},"echo":false,"best_of":1,"top_k":-1,"top_logprobs":0)"})
    EXPECT_EQ(said(more), plain) << more;
  for (const char* field :
       {R"("skip_special_tokens":false)", R"("continue_final_message":true)",
        R"("use_beam_search":true)", R"("length_penalty":0.5)", R"("stop_token_ids":[1])",
        R"("chat_template_kwargs":{"fast":false})", R"("reasoning_effort":"some")",
        R"("chat_template_kwargs":{"enable_thinking":"no"})", R"("echo":true)", R"("best_of":2)",
        R"("top_k":-2)", R"("top_logprobs":1)", R"("unheard_of":1)"}) {
    const Answer a = chat(field);
    EXPECT_EQ(a.status, 400) << field;
    EXPECT_EQ(std::string(field).substr(1, text_of(json(a)["error"]["param"]).size()),
              text_of(json(a)["error"]["param"]))
        << field << a.body;
  }
  EXPECT_EQ(said(R"("top_p":0)"), said(R"("temperature":0)"));
}

// litellm and LangChain have exceptions of their own for it, which they tell by these words.
TEST(OthersClients, PromptsThatAreTooLongAreKnownAsSuch) {
  const Running s;
  const Answer a = s.post("/v1/completions", Json{{"prompt", std::string(20000, 'x')}}.dump());
  EXPECT_EQ(a.status, 400);
  EXPECT_NE(error_of(a).find("this model's maximum context length is 16384 tokens"),
            std::string::npos)
      << error_of(a);
  EXPECT_NE(error_of(a).find("the prompt has 20000"), std::string::npos);
}

}  // namespace
}  // namespace saturate::serve
