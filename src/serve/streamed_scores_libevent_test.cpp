// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of streams, over real sockets.
#include <gtest/gtest.h>

#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

// What the pieces of one choice of a stream add up to.
struct Streamed {
  std::string text, reason;
  Json::Array tokens, own, top, offsets;  // chats: `tokens` alone
  int scored = 0, roles = 0;              // pieces
};
Streamed add_up(const std::string& body, int64_t index) {
  Streamed all;
  const auto append = [](Json::Array& to, const Json& list) {
    if (list.if_array()) to.insert(to.end(), list.if_array()->begin(), list.if_array()->end());
  };
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
  for (size_t at = 0; (at = body.find("data: {", at)) != std::string::npos; ++at) {
    const Json piece = try_parse_json(body.substr(at + 6, body.find("\n\n", at) - at - 6)).value();
    const Json& c = piece["choices"][0];
    if (*c["index"].if_int() != index) continue;
    EXPECT_TRUE(all.reason.empty()) << "something comes behind the end";
    all.text += text_of(c["text"]) + text_of(c["delta"]["content"]);
    all.roles += c["delta"].find("role") != nullptr ? 1 : 0;
    all.reason = text_of(c["finish_reason"]);
    all.scored += c["logprobs"].is_null() ? 0 : 1;
    append(all.tokens, c["logprobs"][c["logprobs"].find("content") ? "content" : "tokens"]);
    append(all.own, c["logprobs"]["token_logprobs"]);
    append(all.top, c["logprobs"]["top_logprobs"]);
    append(all.offsets, c["logprobs"]["text_offset"]);
  }
  return all;
}

// Passes over texts of other lengths round alike to some 1e-6.
void expect_near(const Json::Array& got, const Json& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].is_null(), want[i].is_null()) << i;
    if (!got[i].is_null()) {
      EXPECT_NEAR(*got[i].number(), *want[i].number(), 1e-4) << i;
    }
  }
}

TEST(StreamedScores, AreThoseOfTheWholeAnswer) {
  const Running s;
  for (
      const char* more :
      {R"("max_tokens":150,"logprobs":2,"n":2,"ignore_eos":true)",
       R"("max_tokens":40,"logprobs":0,"stop":["a","e"])",
       R"("max_tokens":9,"logprobs":1,"echo":true)", R"("max_tokens":0,"logprobs":1,"echo":true)",
       R"("max_tokens":200,"logprobs":0,"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":["yes","no"]}}})"}) {
    SCOPED_TRACE(more);
    const Json whole = json(s.post("/v1/completions", completion(more)))["choices"];
    const Answer stream =
        s.post("/v1/completions", completion(std::string(more) + R"(,"stream":true)"));
    for (size_t i = 0; i < whole.size(); ++i) {
      const Streamed got = add_up(stream.body, static_cast<int64_t>(i));
      const Json& scores = whole[i]["logprobs"];
      EXPECT_EQ(got.text, text_of(whole[i]["text"]));
      EXPECT_EQ(got.reason, text_of(whole[i]["finish_reason"]));
      EXPECT_EQ(Json(got.tokens), scores["tokens"]);
      EXPECT_EQ(Json(got.offsets), scores["text_offset"]);
      expect_near(got.own, scores["token_logprobs"]);
      EXPECT_EQ(got.top.size(), scores["top_logprobs"].size());
      // After 1, 2, 4, .. 64 tokens, and each 64.
      if (whole.size() == 2) {
        EXPECT_EQ(got.scored, 9);
      }
    }
  }
}

TEST(StreamedScores, OfChats) {
  const Running s;
  const std::string body =
      R"({"model":"lm","seed":5,"max_tokens":20,"messages":[{"role":"user","content":"x"}],"logprobs":true,)"
      R"("top_logprobs":2)";
  const Json whole = json(s.post("/v1/chat/completions", body + "}"))["choices"][0];
  const Answer stream = s.post("/v1/chat/completions", body + R"(,"stream":true})");
  const Streamed got = add_up(stream.body, 0);
  EXPECT_EQ(got.text, text_of(whole["message"]["content"]));
  EXPECT_EQ(got.roles, 1);
  const Json& content = whole["logprobs"]["content"];
  ASSERT_EQ(got.tokens.size(), content.size());
  for (size_t i = 0; i < content.size(); ++i) {
    EXPECT_EQ(got.tokens[i]["token"], content[i]["token"]);
    EXPECT_NEAR(*got.tokens[i]["logprob"].number(), *content[i]["logprob"].number(), 1e-4);
    EXPECT_EQ(got.tokens[i]["top_logprobs"].size(), 2u);
  }
}

}  // namespace
}  // namespace saturate::serve
