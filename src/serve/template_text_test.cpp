// SPDX-License-Identifier: Apache-2.0
// Against what transformers 5 makes of the templates of Qwen2, Qwen2.5, QwQ and Qwen3, of which these are parts.
#include "serve/template_text.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "serve/openai.h"

namespace saturate::serve {
namespace {

constexpr const char* kQwen2 =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
constexpr const char* kQwen25 =
    R"({%- if tools %}
    {{- '<|im_start|>system\n' }}
{%- else %}
    {%- if messages[0]['role'] == 'system' %}
        {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %})";
constexpr const char* kQwen3 =
    R"({{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %})";
constexpr const char* kQwq =
    R"({%- set content = message.content.split('</think>')[-1].lstrip('\n') %}
{{- '<|im_start|>' + message.role }}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %})";

std::string prompt(const char* jinja, const std::vector<ChatMessage>& chat,
                   std::optional<bool> thinks = {}, const Tools* tools = nullptr,
                   bool held = false) {
  return chat_prompt(chat_template_of_text(jinja).value(), chat, tools, thinks, held);
}

const std::vector<ChatMessage> kAsk = {{"user", "x"}}, kTold = {{"system", "Be."}, {"user", "x"}};

TEST(TemplateText, HasADefaultSystemMessage) {
  const std::string turn = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompt(kQwen2, kAsk),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" + turn);
  EXPECT_EQ(prompt(kQwen25, kAsk),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n" +
                turn);
  for (const char* jinja : {kQwen2, kQwen25, kQwen3})
    EXPECT_EQ(prompt(jinja, kTold), "<|im_start|>system\nBe.<|im_end|>\n" + turn);
  EXPECT_EQ(prompt(kQwen3, kAsk), turn);
  const auto tools = parse_tools(
      parse_json(R"({"tools":[{"type":"function","function":{"name":"now"}}]})", "a test"));
  EXPECT_TRUE(
      prompt(kQwen25, kAsk, {}, tools.get())
          .starts_with("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are "
                       "a helpful assistant.\n\n# Tools\n"));
  EXPECT_TRUE(prompt(kQwen3, kAsk, {}, tools.get()).starts_with("<|im_start|>system\n# Tools\n"));
  // Escapes, and what is no whole turn.
  const ChatTemplate::Turn system = {"<|im_start|>system\n", "<|im_end|>\n"};
  EXPECT_EQ(
      default_system_of(R"("<|im_start|>system\nYou\'re \"A\",\n\\boxed{}.<|im_end|>\n")", system),
      "You're \"A\",\n\\boxed{}.");
  for (const char* none :
       {"", "'<|im_start|>system\\n'", "'<|im_start|>system\\n<|im_end|>'", "'<|im_start|>system",
        "<|im_start|>system\\nx<|im_end|>", "'<|im_start|>systematic<|im_end|>'"})
    EXPECT_EQ(default_system_of(none, system), "") << none;
}

TEST(TemplateText, HasASwitchForReasoning) {
  const std::string off = "<|im_start|>assistant\n<think>\n\n</think>\n\n";
  EXPECT_TRUE(prompt(kQwen3, kAsk).ends_with("<|im_start|>assistant\n"));
  EXPECT_TRUE(prompt(kQwen3, kAsk, true).ends_with("<|im_start|>assistant\n"));
  EXPECT_TRUE(prompt(kQwen3, kAsk, false).ends_with(off));
  EXPECT_TRUE(prompt(kQwen3, kAsk, {}, nullptr, true).ends_with("<|im_start|>assistant\n"));
  for (const bool thinks : {false, true}) {
    EXPECT_TRUE(prompt(kQwen25, kAsk, thinks).ends_with("<|im_start|>assistant\n"));
    EXPECT_TRUE(prompt(kQwq, kAsk, thinks).ends_with("<|im_start|>assistant\n<think>\n"));
  }
  // What must have a form is not begun as a thought.
  EXPECT_TRUE(prompt(kQwq, kAsk, {}, nullptr, true).ends_with("<|im_start|>assistant\n"));
  const auto both = [](const char* when) {
    return thinking_of(std::string("{% if add_generation_prompt %}{% if ") + when +
                       R"( %}'<think>\n'{% else %}'<think>\n\n</think>\n\n'{% endif %})");
  };
  EXPECT_TRUE(both("enable_thinking is not defined or enable_thinking is true").is_default);
  EXPECT_FALSE(both("enable_thinking is defined and enable_thinking is true").is_default);
  EXPECT_EQ(both("enable_thinking is true").on, "<think>\n");
  EXPECT_EQ(both("enable_thinking is true").off, "<think>\n\n</think>\n\n");
  EXPECT_EQ(thinking_of("").on, "");
}

TEST(TemplateText, EarlierThoughtsAreKeptAsItKeepsThem) {
  const std::string thought = "<think>\nHm,\nwell.\n</think>\n\n";
  const std::vector<ChatMessage> before = {
      {"user", "x"}, {"assistant", thought + "Yes."}, {"user", "y"}};
  const std::vector<ChatMessage> since = {{"user", "x"},
                                          {"assistant", thought + "I look.", {{"now", "{}", "1"}}},
                                          {"tool", "12", {}, "1"}};
  const std::string cut = "<|im_start|>assistant\nYes.<|im_end|>\n",
                    kept = "<|im_start|>assistant\n" + thought + "I look.\n<tool_call>";
  EXPECT_NE(prompt(kQwen3, before).find(cut), std::string::npos);
  EXPECT_NE(prompt(kQwq, before).find(cut), std::string::npos);
  EXPECT_NE(prompt(kQwen25, before).find(thought), std::string::npos);
  EXPECT_NE(prompt(kQwen3, since).find(kept), std::string::npos);
  EXPECT_EQ(prompt(kQwq, since).find("Hm"), std::string::npos);
  // An answer at the end, to which another is added.
  const std::vector<ChatMessage> last = {{"user", "x"}, {"assistant", "Yes."}};
  EXPECT_NE(prompt(kQwen3, last).find("assistant\n<think>\n\n</think>\n\nYes.<|im_end|>"),
            std::string::npos);
  EXPECT_NE(prompt(kQwq, last).find("assistant\nYes.<|im_end|>"), std::string::npos);
}

TEST(TemplateText, EffortsAreReadAsVllmReadsThem) {
  const auto thinks = [](const std::string& more) {
    return parse_chat(
               parse_json(R"({"messages":[{"role":"user","content":"x"}])" + more + "}", "t"))
        .thinks;
  };
  EXPECT_EQ(thinks(""), std::nullopt);
  EXPECT_EQ(thinks(R"(,"reasoning_effort":null,"chat_template_kwargs":null)"), std::nullopt);
  EXPECT_EQ(thinks(R"(,"reasoning_effort":"none")"), false);
  EXPECT_EQ(thinks(R"(,"reasoning_effort":"minimal")"), true);
  EXPECT_EQ(thinks(R"(,"chat_template_kwargs":{"enable_thinking":false})"), false);
  EXPECT_EQ(thinks(R"(,"reasoning_effort":"high","chat_template_kwargs":{"thinking":false})"),
            false);
  EXPECT_EQ(thinks(R"(,"chat_template_kwargs":{"reasoning_effort":"none"})"), false);
}

}  // namespace
}  // namespace saturate::serve
