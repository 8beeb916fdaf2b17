// SPDX-License-Identifier: Apache-2.0
// What the published templates make of chats with tools: apply_chat_template of transformers 5 with the chat_template
// of Llama-3.1-8B-Instruct, Mistral-7B-Instruct-v0.3 and Mistral-Nemo-Instruct-2407.
#include "serve/tool_format.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "serve/chat_template.h"
#include "serve/json/automaton_test.h"

namespace saturate::serve {
namespace {

constexpr const char* kTools =
    R"({"tools":[{"type":"function","function":{"name":"weather","description":"The weather à place.","parameters":)"
    R"({"type":"object","properties":{"place":{"type":"string"},"days":{"type":"array","items":{"enum":["mon","tue"]},)"
    R"("maxItems":2},"x":{}},"required":["place"]}}},{"type":"function","function":{"name":"now"}}])";

std::shared_ptr<const Tools> tools_with(const std::string& more = "") {
  return parse_tools(parse_json(kTools + more + "}", "a test"));
}

const std::vector<ChatMessage> kAsk = {{"system", " Be brief. "}, {"user", "Time?\n"}};
const std::vector<ChatMessage> kTold = {
    {"user", "Rain in Porto?"},
    {"assistant", "", {{"weather", R"({"place":"Porto","days":["mon"]})", "abcdefgh1"}}},
    {"tool", R"({"rain": true, "mm": [1, 2.5]})", {}, "abcdefgh1"}};
const std::vector<ChatMessage> kAgain = {
    {"system", "Be brief."},
    {"user", "Hi."},
    {"assistant", "Hello."},
    {"user", "Rain?"},
    {"assistant", "", {{"weather", R"({"place":"Porto"})", "abcdefgh1"}}},
    {"tool", "\"no\"", {}, "abcdefgh1"},
    {"assistant", "It is dry."},
    {"user", "Time?"}};
const std::vector<ChatMessage> kTwo = {
    {"user", "Rain, and time?"},
    {"assistant",
     "",
     {{"weather", R"({"place":"Porto"})", "abcdefgh1"}, {"now", "{}", "abcdefgh2"}}},
    {"tool", "\"no\"", {}, "abcdefgh1"},
    {"tool", "12", {}, "abcdefgh2"}};

std::string prompt(const char* name, const std::vector<ChatMessage>& chat, bool tools) {
  return chat_prompt(*find_chat_template(name), chat, tools ? tools_with().get() : nullptr);
}

TEST(ToolFormat, LlamaChatsAreThoseOfItsTemplate) {
  EXPECT_EQ(prompt("llama3.1", kTold, true),
            R"(<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Environment: ipython
Cutting Knowledge Date: December 2023
Today Date: 26 Jul 2024

<|eot_id|><|start_header_id|>user<|end_header_id|>

Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given prompt.

Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.Do not use variables.

{
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather à place.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {
                    "type": "string"
                },
                "days": {
                    "type": "array",
                    "items": {
                        "enum": [
                            "mon",
                            "tue"
                        ]
                    },
                    "maxItems": 2
                },
                "x": {}
            },
            "required": [
                "place"
            ]
        }
    }
}

{
    "type": "function",
    "function": {
        "name": "now"
    }
}

Rain in Porto?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "weather", "parameters": {"place": "Porto", "days": ["mon"]}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"{\"rain\": true, \"mm\": [1, 2.5]}"<|eot_id|><|start_header_id|>assistant<|end_header_id|>

)");
  EXPECT_EQ(prompt("llama3.1", kAgain, false),
            R"(<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Cutting Knowledge Date: December 2023
Today Date: 26 Jul 2024

Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>

Hi.<|eot_id|><|start_header_id|>assistant<|end_header_id|>

Hello.<|eot_id|><|start_header_id|>user<|end_header_id|>

Rain?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

{"name": "weather", "parameters": {"place": "Porto"}}<|eot_id|><|start_header_id|>ipython<|end_header_id|>

"\"no\""<|eot_id|><|start_header_id|>assistant<|end_header_id|>

It is dry.<|eot_id|><|start_header_id|>user<|end_header_id|>

Time?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

)");
  EXPECT_EQ(prompt("llama3.1", kAsk, false),
            R"(<|begin_of_text|><|start_header_id|>system<|end_header_id|>

Cutting Knowledge Date: December 2023
Today Date: 26 Jul 2024

Be brief.<|eot_id|><|start_header_id|>user<|end_header_id|>

Time?<|eot_id|><|start_header_id|>assistant<|end_header_id|>

)");
}

TEST(ToolFormat, MistralChatsAreThoseOfItsTemplates) {
  EXPECT_EQ(
      prompt("mistral-v3", kTold, true),
      R"(<s>[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "weather", "description": "The weather à place.", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "maxItems": 2}, "x": {}}, "required": ["place"]}}}, {"type": "function", "function": {"name": "now"}}][/AVAILABLE_TOOLS][INST] Rain in Porto?[/INST][TOOL_CALLS] [{"name": "weather", "arguments": {"place": "Porto", "days": ["mon"]}, "id": "abcdefgh1"}]</s>[TOOL_RESULTS] {"content": {"rain": true, "mm": [1, 2.5]}, "call_id": "abcdefgh1"}[/TOOL_RESULTS])");
  EXPECT_EQ(
      prompt("mistral-v3", kAgain, true),
      R"(<s>[INST] Hi.[/INST] Hello.</s>[INST] Rain?[/INST][TOOL_CALLS] [{"name": "weather", "arguments": {"place": "Porto"}, "id": "abcdefgh1"}]</s>[TOOL_RESULTS] {"content": "no", "call_id": "abcdefgh1"}[/TOOL_RESULTS] It is dry.</s>[AVAILABLE_TOOLS] [{"type": "function", "function": {"name": "weather", "description": "The weather à place.", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "maxItems": 2}, "x": {}}, "required": ["place"]}}}, {"type": "function", "function": {"name": "now"}}][/AVAILABLE_TOOLS][INST] Be brief.

Time?[/INST])");
  EXPECT_EQ(
      prompt("mistral-v3", kTwo, false),
      R"(<s>[INST] Rain, and time?[/INST][TOOL_CALLS] [{"name": "weather", "arguments": {"place": "Porto"}, "id": "abcdefgh1"}, {"name": "now", "arguments": {}, "id": "abcdefgh2"}]</s>[TOOL_RESULTS] {"content": "no", "call_id": "abcdefgh1"}[/TOOL_RESULTS][TOOL_RESULTS] {"content": 12, "call_id": "abcdefgh2"}[/TOOL_RESULTS])");
  EXPECT_EQ(prompt("mistral-v3", kAsk, false),
            R"(<s>[INST]  Be brief. 

Time?
[/INST])");
  EXPECT_EQ(
      prompt("mistral-nemo", kTwo, true),
      R"(<s>[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "weather", "description": "The weather à place.", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "maxItems": 2}, "x": {}}, "required": ["place"]}}}, {"type": "function", "function": {"name": "now"}}][/AVAILABLE_TOOLS][INST]Rain, and time?[/INST][TOOL_CALLS][{"name": "weather", "arguments": {"place": "Porto"}, "id": "abcdefgh1"}, {"name": "now", "arguments": {}, "id": "abcdefgh2"}]</s>[TOOL_RESULTS]{"content": "no", "call_id": "abcdefgh1"}[/TOOL_RESULTS][TOOL_RESULTS]{"content": 12, "call_id": "abcdefgh2"}[/TOOL_RESULTS])");
  EXPECT_EQ(
      prompt("mistral-nemo", kAgain, false),
      R"(<s>[INST]Hi.[/INST]Hello.</s>[INST]Rain?[/INST][TOOL_CALLS][{"name": "weather", "arguments": {"place": "Porto"}, "id": "abcdefgh1"}]</s>[TOOL_RESULTS]{"content": "no", "call_id": "abcdefgh1"}[/TOOL_RESULTS]It is dry.</s>[INST]Be brief.

Time?[/INST])");
}

TEST(ToolFormat, TemplatesAreToldByTheirMarks) {
  const auto name_of = [](const char* jinja) {
    const auto t = chat_template_of_text(jinja);
    return t ? std::string(t->name) : std::string();
  };
  EXPECT_EQ(name_of(R"({{- "Environment: ipython\n" }} '<|start_header_id|>')"), "llama3.1");
  EXPECT_EQ(name_of("'<|start_header_id|>' + message['role']"), "llama3");
  EXPECT_EQ(name_of(R"({{- "[AVAILABLE_TOOLS] [" }} "[INST] ")"), "mistral-v3");
  EXPECT_EQ(name_of(R"({{- "[AVAILABLE_TOOLS][" }} "[INST]")"), "mistral-nemo");
  EXPECT_EQ(name_of("'[INST] ' + message['content'] + ' [/INST]'"), "mistral");
  EXPECT_EQ(name_of(R"("[SYSTEM_PROMPT]" "[AVAILABLE_TOOLS][" "[INST]")"), "mistral-v7");
  EXPECT_EQ(name_of(R"("[SYSTEM_PROMPT]" "[INST]" "[CALL_ID]" "[ARGS]")"), "mistral-v11");
  EXPECT_EQ(name_of(R"("[SYSTEM_PROMPT]" "[INST]" "[TOOL_CALLS]" "[ARGS]")"), "mistral-v13");
  EXPECT_EQ(name_of(R"("[SYSTEM_PROMPT] " "[AVAILABLE_TOOLS] [" "[INST] ")"), "mistral");
  EXPECT_EQ(name_of("'<|user|>'"), "");
}

TEST(ChatTemplate, WhatBeginsATextComesOnce) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  const auto framed = bytes.framed({'<' + 2}, bytes.eos_id(), bytes.pad_id());
  const std::vector<int32_t> begun = {'<' + 2, 's' + 2}, other = {'<' + 2, 's' + 2};
  EXPECT_EQ(chat_ids(framed, "<s"), begun);
  EXPECT_EQ(chat_ids(framed, "s"), other);
  EXPECT_EQ(chat_ids(bytes, "<s"), begun);
}

// A call that must be made is begun, and held to the schema in the form that the models know.
TEST(ToolFormat, ForcedCallsHaveTheFormOfTheirModels) {
  const auto any = tools_with(R"(,"tool_choice":"required")");
  const auto now = tools_with(R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  const auto one = tools_with(R"(,"tool_choice":"required","parallel_tool_calls":false)");
  EXPECT_TRUE(chat_prompt(*find_chat_template("mistral-v3"), kAsk, any.get())
                  .ends_with("[/INST][TOOL_CALLS]"));
  EXPECT_TRUE(chat_prompt(*find_chat_template("llama3.1"), kAsk, any.get())
                  .ends_with("assistant<|end_header_id|>\n\n"));
  const auto held = [](const auto& tools, ToolFormat format, const char* text) {
    return takes(held_call(*tools, format)->schema, text);
  };
  const auto llama = ToolFormat::llama, mistral = ToolFormat::mistral;
  EXPECT_TRUE(held(any, llama, R"({"name": "weather", "parameters": {"place": "Porto"}})"));
  EXPECT_FALSE(held(any, llama, R"({"name": "weather", "parameters": {"place": 1}})"));
  EXPECT_FALSE(held(any, llama, R"({"name": "weather", "arguments": {"place": "Porto"}})"));
  EXPECT_FALSE(held(now, llama, R"({"name": "weather", "parameters": {"place": "Porto"}})"));
  const char *const single = R"( [{"name": "now", "arguments": {}}])",
                    *const two = R"([{"name": "now", "arguments": {}}, )"
                                 R"({"name": "weather", "arguments": {"place": "Porto"}}])";
  for (const auto& tools : {any, one, now}) EXPECT_TRUE(held(tools, mistral, single));
  EXPECT_TRUE(held(any, mistral, two));
  EXPECT_FALSE(held(one, mistral, two));
  EXPECT_FALSE(held(now, mistral, two));
  EXPECT_FALSE(held(any, mistral, "[]"));
  EXPECT_EQ(said_calls(*any, mistral, two).calls.size(), 2u);
  EXPECT_EQ(said_calls(*any, llama, R"({"name": "now", "parameters": {}})").calls.size(), 1u);
  // Otherwise held, otherwise kept.
  EXPECT_NE(held_call(*any, llama)->name, held_call(*any, mistral)->name);
  EXPECT_NE(held_call(*any, mistral)->name, held_call(*one, mistral)->name);
}

struct Said {
  const char *text, *content;
  std::vector<std::string> calls;  // name arguments
};

void expect_said(ToolFormat format, const std::vector<Said>& cases) {
  const auto tools = tools_with();
  for (const Said& c : cases) {
    const SaidCalls said = said_calls(*tools, format, c.text);
    EXPECT_EQ(said.content, c.content) << c.text;
    std::vector<std::string> calls;
    for (const ToolCall& call : said.calls) calls.push_back(call.name + " " + call.arguments);
    EXPECT_EQ(calls, c.calls) << c.text;
    // What was shown while it grew is what the content begins with.
    const std::string_view text = c.text;
    for (size_t n = 0; n <= text.size(); ++n) {
      const size_t certain = certain_content(*tools, format, text.substr(0, n));
      EXPECT_TRUE(said.content.starts_with(text.substr(0, certain))) << c.text << " " << n;
    }
  }
}

TEST(ToolFormat, LlamaCallsAreAWholeAnswer) {
  const char* const call = R"({"name": "weather", "parameters": {"place": "Porto"}})";
  const std::string tagged = std::string("<|python_tag|>") + call,
                    after = std::string(call) + " Ok.";
  const std::string two = std::string(call) + "; " + call;
  expect_said(
      ToolFormat::llama,
      {{call, "", {R"(weather {"place":"Porto"})"}},
       {tagged.c_str(), "", {R"(weather {"place":"Porto"})"}},
       {R"({"name": "now", "arguments": {}})", "", {"now {}"}},
       {after.c_str(), after.c_str(), {}},
       {two.c_str(), two.c_str(), {}},
       {R"({"name": "later", "parameters": {}})", R"({"name": "later", "parameters": {}})", {}},
       {R"({"rain": true})", R"({"rain": true})", {}},
       {"It is dry. {", "It is dry. {", {}},
       {"", "", {}}});
  const auto tools = tools_with();
  EXPECT_EQ(certain_content(*tools, ToolFormat::llama, "It is dr"), 8u);
  EXPECT_EQ(certain_content(*tools, ToolFormat::llama, " <|pyth"), 0u);
  EXPECT_EQ(certain_content(*tools, ToolFormat::llama, "{\"rain"), 0u);
}

TEST(ToolFormat, MistralCallsAreAList) {
  expect_said(
      ToolFormat::mistral,
      {{R"([TOOL_CALLS] [{"name": "now", "arguments": {}}])", "", {"now {}"}},
       {R"([{"name": "now", "arguments": {}, "id": "abcdefgh1"}])", "", {"now {}"}},
       {R"(Let me see. [TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "weather", "arguments": {"place": "Porto"}}])",
        "Let me see.",
        {"now {}", R"(weather {"place":"Porto"})"}},
       {R"([TOOL_CALLS] [{"name": "later", "arguments": {}}])",
        R"([TOOL_CALLS] [{"name": "later", "arguments": {}}])",
        {}},
       {R"([TOOL_CALLS] [{"name": "now")", R"([TOOL_CALLS] [{"name": "now")", {}},
       {"[1] is a list [TOOL", "[1] is a list [TOOL", {}},
       {"[]", "[]", {}},
       {"", "", {}}});
  const auto tools = tools_with();
  EXPECT_EQ(certain_content(*tools, ToolFormat::mistral, "so [TOOL"), 2u);
  EXPECT_EQ(said_calls(*tools_with(R"(,"parallel_tool_calls":false)"), ToolFormat::mistral,
                       R"([{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}])")
                .calls.size(),
            1u);
}

TEST(ToolFormat, MistralIdsAreNineLetters) {
  EXPECT_EQ(nine_letters("abcDEF123"), "abcDEF123");
  const std::string made = nine_letters("call-chatcmpl-7-0-0");
  EXPECT_EQ(made.size(), 9u);
  EXPECT_EQ(nine_letters(made), made);
  EXPECT_NE(nine_letters("call-chatcmpl-7-0-1"), made);
  EXPECT_EQ(nine_letters("").size(), 9u);
  // One that the model gave is kept, the same one a second time not.
  const auto tools = tools_with();
  const Json list = calls_json(
      said_calls(
          *tools, ToolFormat::mistral,
          R"([{"name":"now","arguments":{},"id":"abcdefgh1"},{"name":"now","arguments":{},"id":"abcdefgh1"}])")
          .calls,
      ToolFormat::mistral, "chatcmpl-7-0", true);
  EXPECT_EQ(list[0]["id"], Json("abcdefgh1"));
  EXPECT_EQ(list[1]["id"], Json(nine_letters("call-chatcmpl-7-0-1")));
  EXPECT_EQ(list[1]["index"], Json(1));
  // What others gave is told the model so, in the call and in its answer alike; a text as JSON.
  const std::string chat =
      chat_prompt(*find_chat_template("mistral-v3"),
                  std::vector<ChatMessage>{{"user", "Time?"},
                                           {"assistant", "", {{"now", "{}", "call_1"}}},
                                           {"tool", "12:00", {}, "call_1"}});
  const std::string id = nine_letters("call_1");
  EXPECT_EQ(chat,
            R"(<s>[INST] Time?[/INST][TOOL_CALLS] [{"name": "now", "arguments": {}, "id": ")" + id +
                R"("}]</s>[TOOL_RESULTS] {"content": "12:00", "call_id": ")" + id +
                R"("}[/TOOL_RESULTS])");
}

TEST(ToolFormat, RefusesChatsThatItsModelsDoNotKnow) {
  const auto expect = [](const char* name, const std::vector<ChatMessage>& chat, bool tools,
                         const char* says) {
    try {
      prompt(name, chat, tools);
      ADD_FAILURE() << says;
    } catch (const FieldError& e) {
      EXPECT_EQ(e.key, "messages");
      EXPECT_NE(std::string_view(e.what()).find(says), std::string_view::npos) << e.what();
    }
  };
  expect("llama3.1", kTwo, false, "one call at a time");
  expect("llama3.1", {{"system", "Be brief."}}, true, "must be the user's");
  expect("mistral-v3", {{"system", "Be brief."}}, false, "one of the user");
  expect("mistral-v3", {{"assistant", "Hello."}}, true, "one of the user");
  expect("mistral-v3", {{"user", "a"}, {"tool", "b"}}, false, "tool_call_id");
  expect("mistral-v3", {{"user", "a"}, {"assistant", "", {{"now", "{}"}}}}, false, "needs its id");
}

}  // namespace
}  // namespace saturate::serve
