// SPDX-License-Identifier: Apache-2.0
// Fields of vLLM, SGLang and llama.cpp's server that hold an answer, over real sockets.
#include <gtest/gtest.h>

#include <regex>

#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

std::string chat_of(const std::string& more) {
  return R"({"model":"lm","seed":3,"messages":[{"role":"user","content":"x"}],)" + more + "}";
}

TEST(HeldText, WholeAnswersMatch) {
  const Running s;
  const struct {
    const char *field, *pattern;
  } cases[] = {
      {R"("structured_outputs":{"regex":"[a-z]{3}@[a-z]{2,4}\\.com"})",
       R"([a-z]{3}@[a-z]{2,4}\.com)"},
      {R"("structured_outputs":{"choice":["positive","negative","neutral \"x\""]})",
       R"(positive|negative|neutral "x")"},
      {R"("structured_outputs":{"json":{"enum":["up","down"]}})", R"-(\s*"(up|down)")-"},
      {R"("structured_outputs":{"json":"{\"enum\":[1,2]}"})", R"(\s*[12])"},
      {R"("structured_outputs":{"json":{"type":"boolean"},"regex":null,"choice":null,"json_object":null,"disable_any_whitespace":false})",
       R"(\s*(true|false))"},
      {R"("guided_regex":" \\d{2} \"q\" ")", R"( \d{2} "q" )"},
      {R"("guided_choice":["a","ab","abc"],"guided_decoding_backend":"outlines")", "a|ab|abc"},
      {R"("guided_json":{"enum":["up"]})", R"(\s*"up")"},
      {R"("regex":"(yes|no)\\n")", "(yes|no)\\n"},
      {R"("json_schema":"{\"const\":7}")", R"(\s*7)"},
      {R"("json_schema":{"const":7},"grammar":"")", R"(\s*7)"},
      {R"("response_format":{"type":"text"},"regex":"a+b")", "a+b"},
  };
  for (const auto& c : cases) {
    const std::string more = std::string(R"("n":4,"max_tokens":500,)") + c.field;
    const Json all = json(s.post("/v1/completions", completion(more)));
    ASSERT_EQ(all["choices"].size(), 4u) << c.field << all.dump();
    for (const Json& choice : *all["choices"].if_array()) {
      EXPECT_TRUE(std::regex_match(text_of(choice["text"]), std::regex(c.pattern)))
          << c.field << text_of(choice["text"]);
      EXPECT_EQ(text_of(choice["finish_reason"]), "stop") << c.field;
    }
    // Chats too, whose answer keeps the space that it must begin with; and streams.
    const std::string one = std::string(R"("max_tokens":500,)") + c.field;
    const std::string said = text_of(
        json(s.post("/v1/chat/completions", chat_of(one)))["choices"][0]["message"]["content"]);
    EXPECT_TRUE(std::regex_match(said, std::regex(c.pattern))) << c.field << said;
    EXPECT_EQ(
        streamed_text(s.post("/v1/chat/completions", chat_of(one + R"(,"stream":true)")).body),
        said);
  }
  const Json cut = json(s.post("/v1/completions", completion(R"("max_tokens":3,"regex":"a{9}")")));
  EXPECT_EQ(text_of(cut["choices"][0]["finish_reason"]), "length");
  const Json object =
      json(s.post("/v1/completions",
                  completion(R"("max_tokens":20,"structured_outputs":{"json_object":true})")));
  EXPECT_NE(text_of(object["choices"][0]["text"]).find('{'), std::string::npos);
}

// As a format beside tools: the answer is one or the other.
TEST(HeldText, GoesWithTools) {
  struct Setup setup;
  setup.chat = "chatml";
  const Running s(setup);
  const std::string tools =
      R"("n":24,"max_tokens":400,"tools":[{"type":"function","function":{"name":"add","parameters":)"
      R"({"type":"object","properties":{"how":{"enum":["up","down"]}},"required":["how"]}}}],)";
  const Json all =
      json(s.post("/v1/chat/completions",
                  chat_of(tools + R"("structured_outputs":{"choice":["Faro","<b>"]})")));
  size_t calls = 0, texts = 0;
  for (const Json& c : *all["choices"].if_array()) {
    const std::string text = text_of(c["message"]["content"]);
    const bool called = text_of(c["finish_reason"]) == "tool_calls";
    ++(called ? calls : texts);
    EXPECT_TRUE(called || text == "Faro" || text == "<b>") << text;
  }
  EXPECT_GT(calls, 0u);
  EXPECT_GT(texts, 0u);
  const Json forced = json(s.post("/v1/chat/completions",
                                  chat_of(tools + R"("tool_choice":"required","regex":"[0-9]+")")));
  for (const Json& c : *forced["choices"].if_array())
    EXPECT_EQ(text_of(c["finish_reason"]), "tool_calls");
}

TEST(HeldText, RefusesAndSaysWhere) {
  const Running s;
  const struct {
    const char *more, *says, *param;
  } cases[] = {
      {R"("regex":"a","guided_choice":["b"])", "there is guided_choice already", "regex"},
      {R"("structured_outputs":{"regex":"a"},"json_schema":{})",
       "there is structured_outputs already", "json_schema"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "there is regex already",
       "structured_outputs"},
      {R"("response_format":{"type":"json_object"},"regex":"a")", "response_format asks", "regex"},
      {R"("structured_outputs":{})", "give one of json, regex, choice", "structured_outputs"},
      {R"("structured_outputs":{"json_object":false})", "give one of json", "structured_outputs"},
      {R"("structured_outputs":"a")", "an object", "structured_outputs"},
      {R"("structured_outputs":{"grammar":"root ::= \"a\""})", "grammars are not supported",
       "structured_outputs"},
      {R"("structured_outputs":{"structural_tag":"{}"})", "structural_tag", "structured_outputs"},
      {R"("structured_outputs":{"regexp":"a"})", "regexp", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})", "spaces of JSON",
       "structured_outputs"},
      {R"("guided_grammar":"root ::= \"a\"")", "grammars are not supported", "guided_grammar"},
      {R"("ebnf":"root ::= \"a\"")", "grammars are not supported", "ebnf"},
      {R"("grammar":"root ::= \"a\"")", "grammars are not supported", "grammar"},
      {R"("structural_tag":"{}")", "grammars are not supported", "structural_tag"},
      {R"("regex":7)", "as a string", "regex"},
      {R"-("regex":"a(?=b)")-", "regex: at character 2, \"(?=b)\": look-ahead", "regex"},
      {R"("structured_outputs":{"regex":"a("})", "structured_outputs.regex: at character 2",
       "structured_outputs"},
      {R"("guided_regex":"(a|b)*a(a|b){20}")", "guided_regex: ", "guided_regex"},
      {R"("guided_choice":[])", "a list of 1 to 4096 strings", "guided_choice"},
      {R"("guided_choice":"a")", "a list of 1 to 4096 strings", "guided_choice"},
      {R"("structured_outputs":{"choice":["a",1]})",
       "structured_outputs.choice[1]: it must be a string", "structured_outputs"},
      {R"("guided_json":"{")", "the string is no JSON", "guided_json"},
      {R"("guided_json":[1])", "it must be a JSON Schema", "guided_json"},
      {R"("json_schema":{"properties":{"a":{"not":{}}}})",
       "json_schema.properties.a.not: it is not", "json_schema"},
      {R"("regex":"a","min_tokens":4)", "cannot go with regex", "min_tokens"},
      {R"("guided_choice":["a"],"ignore_eos":true)", "cannot go with guided_choice", "ignore_eos"},
  };
  for (const auto& c : cases) {
    for (const bool chat : {false, true}) {
      const Answer a = chat ? s.post("/v1/chat/completions", chat_of(c.more))
                            : s.post("/v1/completions", completion(c.more));
      EXPECT_EQ(a.status, 400) << c.more;
      EXPECT_NE(error_of(a).find(c.says), std::string::npos) << c.more << " -> " << error_of(a);
      EXPECT_EQ(text_of(json(a)["error"]["param"]), c.param) << c.more;
    }
  }
}

}  // namespace
}  // namespace saturate::serve
