// SPDX-License-Identifier: Apache-2.0
// Calls of Mistral's models since version 7 of its tokenizers, against mistral-common 1.13.1.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"
#include "serve/chat_template.h"
#include "serve/json/automaton_test.h"
#include "serve/json/json_constraint.h"
#include "serve/tool_format.h"

namespace saturate::serve {
namespace {

std::shared_ptr<const Tools> tools_with(const std::string& more = "") {
  return parse_tools(parse_json(
      R"({"tools":[{"type":"function","function":{"name":"now","description":"Now.","parameters":{"type":)"
      R"("object","properties":{}}}},{"type":"function","function":{"name":"rain","parameters":{"type":"object",)"
      R"("properties":{"place":{"type":"string"}},"required":["place"]}}}])" +
          more + "}",
      "a test"));
}

const std::vector<ChatMessage> kTold = {
    {"system", "Be brief."},
    {"user", "Hi."},
    {"assistant",
     "I look.",
     {{"rain", R"({"place":"Porto"})", "abcdefgh1"}, {"now", "{}", "abcdefgh2"}}},
    {"tool", "no", {}, "abcdefgh1"},
    {"tool", "12", {}, "abcdefgh2"},
    {"assistant", "It is dry."},
    {"user", "Thanks."}};

TEST(LaterMistral, PromptsAreThoseOfMistralCommon) {
  const auto prompt = [](const char* name, bool tools) {
    return chat_prompt(*find_chat_template(name), kTold, tools ? tools_with().get() : nullptr);
  };
  const std::string told =
      R"([AVAILABLE_TOOLS][{"type": "function", "function": {"name": "now", "description": "Now.", "parameters": {"type": "object", "properties": {}}}}, {"type": "function", "function": {"name": "rain", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}}}][/AVAILABLE_TOOLS])";
  const std::string begin = "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]", end = "It is dry.</s>",
                    last = "[INST]Thanks.[/INST]";
  const std::string by_id =
      "[TOOL_RESULTS]abcdefgh1[TOOL_CONTENT]no[/TOOL_RESULTS]"
      "[TOOL_RESULTS]abcdefgh2[TOOL_CONTENT]12[/TOOL_RESULTS]";
  EXPECT_EQ(
      prompt("mistral-v7", true),
      begin +
          R"([INST]Hi.[/INST]I look.[TOOL_CALLS][{"name": "rain", "arguments": {"place": "Porto"}, "id": "abcdefgh1"}, {"name": "now", "arguments": {}, "id": "abcdefgh2"}]</s>)" +
          by_id + end + told + last);
  EXPECT_EQ(
      prompt("mistral-v11", true),
      begin +
          R"([INST]Hi.[/INST]I look.[TOOL_CALLS]rain[CALL_ID]abcdefgh1[ARGS]{"place": "Porto"}[TOOL_CALLS]now[CALL_ID]abcdefgh2[ARGS]{}</s>)" +
          by_id + end + told + last);
  EXPECT_EQ(
      prompt("mistral-v13", true),
      begin + told +
          R"([INST]Hi.[/INST]I look.[TOOL_CALLS]rain[ARGS]{"place": "Porto"}[TOOL_CALLS]now[ARGS]{}</s>[TOOL_RESULTS]no[/TOOL_RESULTS][TOOL_RESULTS]12[/TOOL_RESULTS])" +
          end + last);
  EXPECT_EQ(prompt("mistral-v13", false).find("[AVAILABLE_TOOLS]"), std::string::npos);
  // Without ids: those of version 13 alone.
  const std::vector<ChatMessage> chat = {
      {"user", "a"}, {"assistant", "", {{"now", "{}"}}}, {"tool", "b"}};
  EXPECT_EQ(chat_prompt(*find_chat_template("mistral-v13"), chat),
            "<s>[INST]a[/INST][TOOL_CALLS]now[ARGS]{}</s>[TOOL_RESULTS]b[/TOOL_RESULTS]");
  for (const char* name : {"mistral-v7", "mistral-v11"})
    EXPECT_THROW(chat_prompt(*find_chat_template(name), chat), FieldError) << name;
  EXPECT_EQ(
      chat_prompt(*find_chat_template("mistral-v11"), std::vector<ChatMessage>{{"system", "x"}}),
      "<s>[SYSTEM_PROMPT]x[/SYSTEM_PROMPT]");
}

TEST(LaterMistral, CallsAreRead) {
  const auto tools = tools_with(), forced = tools_with(R"(,"tool_choice":"required")");
  const struct {
    const char *text, *content;
    std::vector<std::string> calls;  // name arguments id
  } cases[] = {
      {R"([TOOL_CALLS]now[ARGS]{})", "", {"now {} "}},
      {R"([TOOL_CALLS]rain[CALL_ID]abcdefgh1[ARGS]{"place": "Porto"})",
       "",
       {R"(rain {"place":"Porto"} abcdefgh1)"}},
      {R"(I look.
[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS] rain [ARGS] {"place": "[x]"})",
       "I look.",
       {"now {} ", R"(rain {"place":"[x]"} )"}},
      {R"([TOOL_CALLS]now{})", "", {"now {} "}},  // of some models
      {R"([TOOL_CALLS]later[ARGS]{})", R"([TOOL_CALLS]later[ARGS]{})", {}},
      {R"([TOOL_CALLS]now[ARGS]{)", R"([TOOL_CALLS]now[ARGS]{)", {}},
      {R"([TOOL_CALLS]now[ARGS][])", R"([TOOL_CALLS]now[ARGS][])", {}},
      {R"([TOOL_CALLS]now)", R"([TOOL_CALLS]now)", {}},
      {R"([TOOL_CALLS])", R"([TOOL_CALLS])", {}},
      {R"(now[ARGS]{})", R"(now[ARGS]{})", {}},
      {"Hello [you].", "Hello [you].", {}},
      {"", "", {}},
  };
  for (const auto& c : cases) {
    for (const ToolFormat format : {ToolFormat::mistral_v11, ToolFormat::mistral_v13}) {
      const SaidCalls said = said_calls(*tools, format, c.text);
      EXPECT_EQ(said.content, c.content) << c.text;
      std::vector<std::string> calls;
      for (const ToolCall& call : said.calls)
        calls.push_back(call.name + " " + call.arguments + " " + call.id);
      EXPECT_EQ(calls, c.calls) << c.text;
      const std::string_view text = c.text;
      for (size_t n = 0; n <= text.size(); ++n) {
        const size_t certain = certain_content(*tools, format, text.substr(0, n));
        EXPECT_TRUE(said.content.starts_with(text.substr(0, certain))) << c.text << " " << n;
      }
    }
  }
  // One that must come has its mark before it.
  EXPECT_EQ(said_calls(*forced, ToolFormat::mistral_v13, "now[ARGS]{}").calls.size(), 1u);
  EXPECT_EQ(said_calls(*forced, ToolFormat::mistral_v13, "now[ARGS]{}[TOOL_CALLS]now[ARGS]{}")
                .calls.size(),
            2u);
  const SaidCalls held = said_calls(*forced, ToolFormat::mistral_v11,
                                    "now[CALL_ID]" + nine_letters("now") + "[ARGS]{}");
  ASSERT_EQ(held.calls.size(), 1u);
  EXPECT_EQ(held.calls[0].id, "");
  const Json list = calls_json(held.calls, ToolFormat::mistral_v11, "chat", false);
  EXPECT_EQ(list[0]["id"].if_string()->size(), 9u);
}

// Marks are tokens where the model has them, and no text of a string.
TEST(LaterMistral, CallsThatMustComeAreHeld) {
  constexpr int32_t kEnd = 0, kArgs = 1, kId = 2;
  const auto forced = tools_with(R"(,"tool_choice":"required")");
  const auto walks = [&](ToolFormat format, bool marks, std::vector<std::string> tokens) {
    std::vector<std::string> bytes = {"", marks ? "\xFF" : "", marks ? "\xFE" : ""};
    for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b < 0xF5 ? b : 'x'));
    JsonConstraint constraint(held_call(*forced, format)->schema,
                              std::make_shared<const TokenBytes>(bytes), {kEnd});
    const auto may = [&](int32_t state, int32_t id) {
      const auto mask = constraint.allowed(state);
      return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
    };
    int32_t state = constraint.start();
    for (const std::string& token : tokens) {
      std::vector<int32_t> ids;
      if (token == "ARGS") ids = {kArgs};
      if (token == "ID") ids = {kId};
      if (ids.empty())
        for (const char c : token) ids.push_back(static_cast<unsigned char>(c) + 3);
      for (const int32_t id : ids) {
        if (!may(state, id)) return false;
        state = constraint.next(state, id);
      }
    }
    return may(state, kEnd);
  };
  const auto v11 = ToolFormat::mistral_v11, v13 = ToolFormat::mistral_v13;
  EXPECT_TRUE(walks(v13, true, {"rain", "ARGS", R"({"place": "Porto"})"}));
  EXPECT_TRUE(walks(v13, true, {"now", "ARGS", "{}"}));
  EXPECT_TRUE(walks(v13, false, {"now[ARGS]{}"}));
  EXPECT_FALSE(walks(v13, true, {"now[ARGS]{}"}));
  EXPECT_FALSE(walks(v13, true, {"rain", "ARGS", R"({"place": "Po)", "ARGS", R"("})"}));
  EXPECT_FALSE(walks(v13, true, {"rain", "ARGS", R"({"place": 1})"}));
  EXPECT_FALSE(walks(v13, true, {"snow", "ARGS", "{}"}));
  EXPECT_FALSE(walks(v13, true, {"now", "ARGS"}));
  EXPECT_TRUE(walks(v11, true, {"now", "ID", nine_letters("now"), "ARGS", "{}"}));
  EXPECT_TRUE(walks(v11, false, {"now[CALL_ID]" + nine_letters("now") + "[ARGS]{}"}));
  EXPECT_FALSE(walks(v11, true, {"now", "ARGS", "{}"}));
}

// A tokenizer's marks become these bytes.
TEST(LaterMistral, MarksAreBytesThatNoTextHas) {
  Json file = parse_json(
      data::tokenizer_json(data::Tokenizer::bytes(), data::SentenceEnd::left_out), "a test");
  Json added = file["added_tokens"], mark = added[0];
  mark["id"] = 300;
  mark["content"] = "[ARGS]";
  mark["special"] = true;
  added.push_back(mark);
  file["added_tokens"] = added;
  const data::Tokenizer t = data::Tokenizer::parse(file.dump(), "tokenizer.json");
  model::ModelConfig config;
  config.vocab_target = 301;
  const std::vector<std::string> bytes = token_bytes(t, config);
  EXPECT_EQ(bytes[300], "\xFF");
  EXPECT_EQ(std::ranges::count(bytes, "\xFF"), 1);
  EXPECT_EQ(std::ranges::count(bytes, "\xFE"), 0);  // which the vocabulary has as a byte
}

}  // namespace
}  // namespace saturate::serve
