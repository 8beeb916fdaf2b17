// SPDX-License-Identifier: Apache-2.0
// What clients of others send (docs/guide/serve.md, "Read by clients of others"), over real sockets.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace saturate::serve
