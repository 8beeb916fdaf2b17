// SPDX-License-Identifier: Apache-2.0
#include "serve/tools.h"
#include "serve/json/automaton_test.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "serve/chat_template.h"
#include "serve/tool_format.h"

namespace saturate::serve {
namespace {

Json body_of(std::string more = "") {
  return parse_json(
      R"({"tools":[{"type":"function","function":{"name":"add","description":"Adds.","parameters":)"
      R"({"type":"object","properties":{"a":{"$ref":"#/$defs/n"}},"required":["a"],"$defs":{"n":{"type":"integer"}}}}},)"
      R"({"type":"function","function":{"name":"now"}}])" +
          more + "}",
      "a test");
}

std::string why_not(const Json& body) {
  try {
    const auto tools = parse_tools(body);
    if (tools && tools->must_call) held_call(*tools, ToolFormat::hermes);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Tools, ChoicesForceACall) {
  EXPECT_EQ(parse_tools(Json{{"messages", 1}}), nullptr);
  EXPECT_EQ(parse_tools(body_of(R"(,"tool_choice":"none")")), nullptr);
  EXPECT_FALSE(parse_tools(body_of())->must_call);
  const auto schema_of = [](const char* choice) {
    return held_call(*parse_tools(body_of(choice)), ToolFormat::hermes)->schema;
  };
  const JsonSchema any = schema_of(R"(,"tool_choice":"required")");
  const JsonSchema one =
      schema_of(R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  const char *const add = R"({"name": "add", "arguments": {"a": 5}})",
                    *const now = R"({"name": "now", "arguments": {}})";
  EXPECT_TRUE(takes(any, add) && takes(any, now));
  EXPECT_TRUE(!takes(one, add) && takes(one, now));
  EXPECT_FALSE(takes(any, R"({"name": "add", "arguments": {"a": "5"}})"));
  EXPECT_FALSE(takes(any, R"({"name": "add", "arguments": {}})"));
}

TEST(Tools, AllowedOnesAloneAreToldAndCalled) {
  const auto of = [](const std::string& mode, const std::string& names) {
    std::string list;
    for (const char name : names)
      list += std::string(list.empty() ? "" : ",") + R"({"type":"function","function":{"name":")" +
              (name == 'a' ? "add" : "now") + "\"}}";
    return body_of(R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":")" + mode +
                   R"(","tools":[)" + list + "]}}");
  };
  const auto free = parse_tools(of("auto", "n"));
  EXPECT_FALSE(free->must_call);
  ASSERT_EQ(free->functions.size(), 1u);
  EXPECT_EQ(tools_text(*free, ToolFormat::hermes).find("\"add\""), std::string::npos);
  const char *const add = R"({"name": "add", "arguments": {"a": 5}})",
                    *const now = R"({"name": "now", "arguments": {}})";
  const std::string called = std::string("<tool_call>") + add + "</tool_call>";
  EXPECT_TRUE(said_calls(*free, ToolFormat::hermes, called).calls.empty());
  const JsonSchema one = held_call(*parse_tools(of("required", "nn")), ToolFormat::hermes)->schema;
  EXPECT_TRUE(takes(one, now) && !takes(one, add));
  const JsonSchema both = held_call(*parse_tools(of("required", "na")), ToolFormat::hermes)->schema;
  EXPECT_TRUE(takes(both, now) && takes(both, add));
  // Places are those of the request.
  const Json odd = parse_json(
      R"({"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g",)"
      R"("parameters":{"type":"object","not":{}}}}],"tool_choice":{"type":"allowed_tools",)"
      R"("allowed_tools":{"mode":"required","tools":[{"type":"function","function":{"name":"g"}}]}}})",
      "t");
  EXPECT_NE(why_not(odd).find("tools[1].function.parameters.not"), std::string::npos)
      << why_not(odd);
}

// Of several functions each is held to patterns of its own.
TEST(Tools, ForcedCallsKeepThePatternsOfTheirParameters) {
  const auto tools = parse_tools(parse_json(
      R"({"tool_choice":"required","tools":[)"
      R"({"type":"function","function":{"name":"on","parameters":{"type":"object","properties":)"
      R"({"day":{"type":"string","format":"date"}},"required":["day"]}}},)"
      R"({"type":"function","function":{"name":"at","parameters":{"type":"object","properties":)"
      R"({"hour":{"type":"integer","minimum":0,"maximum":23}},"required":["hour"]}}}]})",
      "t"));
  const JsonSchema schema = held_call(*tools, ToolFormat::hermes)->schema;
  EXPECT_TRUE(takes(schema, R"({"name": "on", "arguments": {"day": "2026-11-30"}})"));
  EXPECT_FALSE(takes(schema, R"({"name": "on", "arguments": {"day": "2026-11-31"}})"));
  EXPECT_TRUE(takes(schema, R"({"name": "at", "arguments": {"hour": 23}})"));
  EXPECT_FALSE(takes(schema, R"({"name": "at", "arguments": {"hour": 24}})"));
}

TEST(Tools, RefusesAndSaysWhere) {
  const auto expect = [](const Json& body, const char* says) {
    EXPECT_NE(why_not(body).find(says), std::string::npos) << why_not(body);
  };
  expect(body_of(R"(,"tool_choice":"any")"), "tool_choice: it must be none, auto, required");
  expect(body_of(R"(,"tool_choice":{"type":"function","function":{"name":"sub"}})"), "name sub");
  const auto allowed = [](const std::string& what) {
    return body_of(R"(,"tool_choice":{"type":"allowed_tools")" + what + "}");
  };
  expect(allowed(""), "tool_choice.allowed_tools.mode: it must be auto or required");
  expect(allowed(R"(,"mode":"auto","tools":[])"), "tool_choice.allowed_tools.mode");
  expect(allowed(R"(,"allowed_tools":{"mode":"none"})"), "tool_choice.allowed_tools.mode");
  expect(allowed(R"(,"allowed_tools":{"mode":"auto","tools":[]})"),
         "tool_choice.allowed_tools.tools: it must be a list");
  expect(allowed(R"(,"allowed_tools":{"mode":"auto","tools":["add"]})"),
         "tool_choice.allowed_tools.tools[0]: it must be {\"type\"");
  expect(
      allowed(
          R"(,"allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"x"}}]})"),
      "tool_choice.allowed_tools.tools[0]: no tool has the name x");
  expect(Json{{"tool_choice", "required"}}, "there are no tools");
  expect(parse_json(R"({"tools":[{"type":"web"}]})", "t"), "tools[0]: only");
  expect(parse_json(R"({"tools":[{"type":"function","function":{}}]})", "t"),
         "tools[0].function.name");
  const char* const odd =
      R"({"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":)"
      R"({"type":"object","properties":{"a":{"type":"string","format":"hostname"}}}}}]})";
  expect(parse_json(odd, "t"), "tools[0].function.parameters.properties.a.format: it is not");
}

// What joining parts of schemas takes counts for all functions together.
TEST(Tools, ManyLargeParametersAreRefused) {
  std::string members, parts, functions;
  for (int i = 0; i < 900; ++i)
    members += (i > 0 ? "," : "") + ('"' + std::to_string(i)) + R"(":{"type":"string"})";
  for (int i = 0; i < 60; ++i) parts += std::string(i > 0 ? "," : "") + R"({"$ref":"#/$defs/a"})";
  for (int i = 0; i < 40; ++i)
    functions += std::string(i > 0 ? "," : "") + R"({"type":"function","function":{"name":"f)" +
                 std::to_string(i) + R"(","parameters":{"allOf":[)" + parts +
                 R"(],"$defs":{"a":{"type":"object","properties":{)" + members + "}}}}}}";
  EXPECT_NE(why_not(parse_json(R"({"tool_choice":"required","tools":[)" + functions + "]}", "t"))
                .find("its parts are too many together"),
            std::string::npos);
}

TEST(Tools, CallsAreFoundInAnswers) {
  const auto tools = parse_tools(body_of());
  const std::string call = call_text({"add", R"({"a": 5})"}, ToolFormat::hermes);
  EXPECT_EQ(call, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 5}}\n</tool_call>");
  const SaidCalls two =
      said_calls(*tools, ToolFormat::hermes,
                 "Let me see.\n\n" + call + "\n" + call_text({"now", "{}"}, ToolFormat::hermes));
  EXPECT_EQ(two.content, "Let me see.");
  ASSERT_EQ(two.calls.size(), 2u);
  EXPECT_EQ(two.calls[0].arguments, R"({"a":5})");
  EXPECT_EQ(two.calls[1].name, "now");
  // Ends that are special tokens are no text.
  const std::string endless = "<tool_call>{\"name\":\"now\",\"arguments\":{}}\n";
  EXPECT_EQ(said_calls(*tools, ToolFormat::hermes, endless + endless).calls.size(), 2u);
  // A model may stop behind the JSON.
  EXPECT_EQ(said_calls(*tools, ToolFormat::hermes, call.substr(0, call.size() - 12)).calls.size(),
            1u);
  EXPECT_EQ(said_calls(*parse_tools(body_of(R"(,"parallel_tool_calls":false)")), ToolFormat::hermes,
                       call + call)
                .calls.size(),
            1u);
  for (const char* text :
       {"no call", "<tool_call>\n{\"name\": \"add\"}\n</tool_call>",
        "<tool_call>{\"name\": \"sub\", \"arguments\": {}}</tool_call>", "a<tool_call>", ""}) {
    const SaidCalls said = said_calls(*tools, ToolFormat::hermes, text);
    EXPECT_EQ(said.content, text);
    EXPECT_TRUE(said.calls.empty()) << text;
  }
}

// What was shown of an answer while it grew is what its content begins with.
TEST(Tools, ContentIsCertainBeforeACall) {
  const auto tools = parse_tools(body_of());
  const std::string whole =
      "a <b> <tool\n <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>";
  const std::string content = said_calls(*tools, ToolFormat::hermes, whole).content;
  EXPECT_EQ(content, "a <b> <tool");
  for (size_t n = 0; n <= whole.size(); ++n) {
    const size_t certain = certain_content(*tools, ToolFormat::hermes, whole.substr(0, n));
    EXPECT_TRUE(content.starts_with(whole.substr(0, certain))) << n;
  }
  EXPECT_EQ(certain_content(*tools, ToolFormat::hermes, "so <tool"), 2u);
  EXPECT_EQ(certain_content(*tools, ToolFormat::hermes, "so <tools"), 9u);
}

// As the tokenizer_config.json of Qwen3 writes a chat with a call and its answer.
TEST(Tools, ChatsAreWrittenAsModelsLearntThem) {
  const auto tools = parse_tools(parse_json(
      R"({"tools":[{"type":"function","function":{"name":"now","parameters":{"type":"object"}}}]})",
      "t"));
  const std::vector<ChatMessage> chat = {{"system", "Be brief."},
                                         {"user", "Time?"},
                                         {"assistant", "", {{"now", "{}"}}},
                                         {"tool", "12:00"},
                                         {"tool", "UTC"}};
  EXPECT_EQ(chat_prompt(*find_chat_template("chatml"), chat, tools.get()),
            "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to "
            "assist with the "
            "user query.\n\nYou are provided with function signatures within <tools></tools> XML "
            "tags:\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"now\", "
            "\"parameters\": {\"type\": "
            "\"object\"}}}\n</tools>\n\nFor each function call, return a json object with function "
            "name and "
            "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
            "<function-name>, "
            "\"arguments\": "
            "<args-json-object>}\n</tool_call><|im_end|>\n<|im_start|>user\nTime?<|im_end|>\n"
            "<|im_start|>assistant\n<tool_call>\n{\"name\": \"now\", \"arguments\": "
            "{}}\n</tool_call><|im_end|>\n"
            "<|im_start|>user\n<tool_response>\n12:00\n</tool_response>\n<tool_response>\nUTC\n</"
            "tool_response>"
            "<|im_end|>\n<|im_start|>assistant\n");
}

}  // namespace
}  // namespace saturate::serve
