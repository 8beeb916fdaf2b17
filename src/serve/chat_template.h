// SPDX-License-Identifier: Apache-2.0
// How a conversation becomes a prompt. The templates of Hugging Face folders are programs (Jinja), which
// are not run: there are fixed ones, by name.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"
#include "serve/tools.h"

namespace saturate::serve {

struct ChatMessage {
  std::string role, content;         // system, user, assistant or tool
  std::vector<ToolCall> calls = {};  // of an assistant
  std::string call_id = {};          // of a tool: the call that it answers; empty: none was given
};

// What models of reasoning write between <think> and </think>, as the template of a folder has it.
struct ChatThinking {
  enum class Kept : uint8_t { all, since_question, none };
  std::string on = {},
              off = {};  // behind what opens an answer, where the model may think and where not
  bool has_switch = false, is_default = true;
  Kept kept = Kept::all;  // of earlier answers what was thought
};

struct ChatTemplate {
  struct Turn {
    std::string_view before, after;
  };
  std::string_view name;
  std::string_view mark;   // what Jinja templates of this kind hold; empty: none is told by it
  std::string_view begin;  // before everything
  Turn system;             // empty: the text goes before that of the next user turn
  Turn user, assistant;
  std::string_view open;  // after which the assistant's answer stands
  std::string_view stop;  // ends an answer where the model's end-of-sentence does not; may be empty
  ToolFormat tools = ToolFormat::none;  // that its models know
  // Of a folder's template, where it has them:
  std::string default_system = {};  // what a chat without a system message begins with
  ChatThinking thinking = {};
};

// plain, chatml, llama3, llama3.1, gemma, mistral, mistral-v3, mistral-nemo, mistral-v7, mistral-v11 or mistral-v13;
// null for another name.
const ChatTemplate* find_chat_template(std::string_view name);
std::vector<std::string> chat_template_names();

// That of a model folder, told by what its chat_template.jinja or tokenizer_config.json holds; plain
// where there is none, or (with a warning) an unknown one.
ChatTemplate chat_template_of(const std::string& folder);
// The same, of the text of such a template; none for an unknown one.
std::optional<ChatTemplate> chat_template_of_text(std::string_view jinja);

// The prompt whose continuation is the assistant's next message. `thinks`: whether the model may reason first; none:
// as the template has it. Without a switch in the template it says nothing. `held`: the answer has a given form, and
// begins with it.
// `tools`: may be none; they, calls and messages of tools need a template that has them. Errors: FieldError of
// messages for a conversation that the models of the template do not know. Source: the templates of Qwen3 (without
// reasoning), Llama 3.1, Mistral 7B v0.3 and Mistral Nemo (docs/adr/0116-tools-in-three-forms.md).
std::string chat_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                        const Tools* tools = nullptr, std::optional<bool> thinks = {},
                        bool held = false);

// Its ids. What the tokenizer puts before a text and the template begins with (<|begin_of_text|>, <s>) comes once.
std::vector<int32_t> chat_ids(const data::Tokenizer& tokenizer, std::string_view prompt);

}  // namespace saturate::serve
