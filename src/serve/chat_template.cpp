// SPDX-License-Identifier: Apache-2.0
#include "serve/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "serve/template_text.h"
#include "serve/tool_format.h"
#include "train/corpora.h"

namespace saturate::serve {
namespace {

// As the models' own tokenizer_config.json write them. The first whose mark a template holds is taken.
// Told by chat_template_of_text, since they have no mark of one piece: systems in turns of their own, and results by
// their ids.
ChatTemplate later_mistral(std::string_view name, ToolFormat tools) {
  return {.name = name,
          .mark = "",
          .begin = "<s>",
          .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
          .user = {"[INST]", "[/INST]"},
          .assistant = {"", "</s>"},
          .open = "",
          .stop = "[INST]",
          .tools = tools};
}

const ChatTemplate kTemplates[] = {
    {.name = "plain",
     .mark = "",
     .begin = "",
     .system = {"", "\n\n"},
     .user = {"user: ", "\n"},
     .assistant = {"assistant: ", "\n"},
     .open = "assistant:",
     .stop = "\nuser:"},
    {.name = "chatml",
     .mark = "<|im_start|>",
     .begin = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
     .open = "<|im_start|>assistant\n",
     .stop = "<|im_end|>",
     .tools = ToolFormat::hermes},
    {.name = "llama3.1",
     .mark = "Environment: ipython",
     .begin = "<|begin_of_text|>",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     .open = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .stop = "<|eot_id|>",
     .tools = ToolFormat::llama},
    {.name = "llama3",
     .mark = "<|start_header_id|>",
     .begin = "<|begin_of_text|>",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
     .open = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .stop = "<|eot_id|>"},
    {.name = "gemma",
     .mark = "<start_of_turn>",
     .begin = "<bos>",
     .system = {},
     .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
     .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
     .open = "<start_of_turn>model\n",
     .stop = "<end_of_turn>"},
    {.name = "mistral-v3",
     .mark = "[AVAILABLE_TOOLS] [",
     .begin = "<s>",
     .system = {},
     .user = {"[INST] ", "[/INST]"},
     .assistant = {" ", "</s>"},
     .open = "",
     .stop = "[INST]",
     .tools = ToolFormat::mistral},
    // The same without spaces behind marks.
    {.name = "mistral-nemo",
     .mark = "[AVAILABLE_TOOLS][",
     .begin = "<s>",
     .system = {},
     .user = {"[INST]", "[/INST]"},
     .assistant = {"", "</s>"},
     .open = "",
     .stop = "[INST]",
     .tools = ToolFormat::mistral},
    later_mistral("mistral-v7", ToolFormat::mistral),
    later_mistral("mistral-v11", ToolFormat::mistral_v11),
    later_mistral("mistral-v13", ToolFormat::mistral_v13),
    {.name = "mistral",
     .mark = "[INST]",
     .begin = "<s>",
     .system = {},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {" ", "</s>"},
     .open = "",
     .stop = "[INST]"},
};

[[noreturn]] void refuse(std::string_view why) {
  throw FieldError("request", fmt::format("messages: {}", why), "messages");
}

// What Jinja's "| trim" leaves, which takes more for spaces than trim() does.
std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) + 1 - first);
}

// A system message is always there, and functions lie in the first message of the user. The date is the one that
// the template itself falls back to, so that a prompt does not change from day to day.
std::string llama_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                         const Tools* tools) {
  std::string out(t.begin);
  out += t.system.before;
  if (tools != nullptr) out += "Environment: ipython\n";
  out += "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
  if (!messages.empty() && messages[0].role == "system") {
    out += trimmed(messages[0].content);
    messages = messages.subspan(1);
  }
  out += t.system.after;
  if (tools != nullptr) {
    if (messages.empty() || messages[0].role != "user")
      refuse("with tools the first one but the system's must be the user's; add it");
    out.append(t.user.before).append(tools_text(*tools, t.tools));
    out.append(trimmed(messages[0].content)).append(t.user.after);
    messages = messages.subspan(1);
  }
  for (const ChatMessage& m : messages) {
    if (m.role == "tool") {
      out.append("<|start_header_id|>ipython<|end_header_id|>\n\n");
      out.append(Json(m.content).dump()).append(t.user.after);
      continue;
    }
    const ChatTemplate::Turn& turn = m.role == "system" ? t.system
                                     : m.role == "user" ? t.user
                                                        : t.assistant;
    out += turn.before;
    if (m.calls.size() > 1)
      refuse(
          "Llama's models make one call at a time; give each call of tool_calls a message of its "
          "own");
    out += m.calls.empty() ? std::string(trimmed(m.content)) : call_text(m.calls[0], t.tools);
    out += turn.after;
  }
  return out.append(t.open);
}

// What came of a call. `json`: both parts as JSON, of the first that had tools.
std::string mistral_result(const ChatTemplate& t, const ChatMessage& m, bool json) {
  if (t.tools == ToolFormat::mistral_v13)
    return fmt::format("[TOOL_RESULTS]{}[/TOOL_RESULTS]", m.content);
  if (m.call_id.empty())
    refuse("a tool's needs its tool_call_id, which Mistral's models read; add it");
  if (!json)
    return fmt::format("[TOOL_RESULTS]{}[TOOL_CONTENT]{}[/TOOL_RESULTS]", nine_letters(m.call_id),
                       m.content);
  const bool is_json = try_parse_json(m.content, {.unique_names = false}).has_value();
  return fmt::format(R"([TOOL_RESULTS]{}{{"content": {}, "call_id": "{}"}}[/TOOL_RESULTS])",
                     t.assistant.before, is_json ? m.content : Json(m.content).dump(),
                     nine_letters(m.call_id));
}

std::string mistral_calls(const ChatTemplate& t, const ChatMessage& m) {
  std::string out;
  for (const ToolCall& call : m.calls) {
    if (call.id.empty() && t.tools != ToolFormat::mistral_v13)
      refuse("each of tool_calls needs its id, which Mistral's models read; add it");
    if (t.tools == ToolFormat::mistral)
      out += (out.empty() ? "[" : ", ") + call_text(call, t.tools);
    else
      out.append("[TOOL_CALLS]").append(call_text(call, t.tools));
  }
  if (t.tools != ToolFormat::mistral) return out;
  return fmt::format("[TOOL_CALLS]{}{}]", t.assistant.before, out);
}

// Functions lie before the last message of the user, and the system's text in it; later before the first one, and in
// turns of its own.
std::string mistral_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                           const Tools* tools) {
  const std::string_view gap = t.assistant.before;
  const bool own_systems = !t.system.before.empty();
  std::string out(t.begin), system;
  if (!own_systems)
    for (const ChatMessage& m : messages)
      if (m.role == "system") system += m.content + "\n\n";
  const ChatMessage *first = nullptr, *last = nullptr;  // of the user
  for (const ChatMessage& m : messages) {
    if (m.role != "user") continue;
    last = &m;
    if (first == nullptr) first = &m;
  }
  if (last == nullptr && (tools != nullptr || !system.empty()))
    refuse("there must be one of the user, which tools and the system's text go with; add it");
  const ChatMessage* const told = t.tools == ToolFormat::mistral_v13 ? first : last;
  for (const ChatMessage& m : messages) {
    if (m.role == "system") {
      if (own_systems) out.append(t.system.before).append(m.content).append(t.system.after);
    } else if (m.role == "tool") {
      out += mistral_result(t, m, !own_systems);
    } else if (m.role == "user") {
      if (&m == told && tools != nullptr)
        out += fmt::format("[AVAILABLE_TOOLS]{}{}[/AVAILABLE_TOOLS]", gap,
                           tools_text(*tools, t.tools));
      out.append(t.user.before).append(&m == last ? system : "").append(m.content);
      out += t.user.after;
    } else {
      // The first that had tools have no text beside calls.
      if (m.calls.empty() || (own_systems && !m.content.empty())) {
        out.append(gap);
        out.append(gap.empty() ? std::string_view(m.content) : trimmed(m.content));
      }
      if (!m.calls.empty()) out += mistral_calls(t, m);
      out.append(t.assistant.after);
    }
  }
  return out.append(t.open);
}

// The last question of the user, which is not what a tool answered; -1: there is none.
std::ptrdiff_t last_question(std::span<const ChatMessage> messages) {
  for (std::ptrdiff_t i = std::ssize(messages) - 1; i >= 0; --i) {
    const ChatMessage& m = messages[static_cast<size_t>(i)];
    if (m.role == "user" &&
        !(m.content.starts_with("<tool_response>") && m.content.ends_with("</tool_response>")))
      return i;
  }
  return std::ssize(messages) - 1;
}

// What an assistant said at `i` of `messages`, with so much of what it thought as the template keeps.
struct Kept {
  std::string thought, content;
};
Kept kept_of(const ChatTemplate& t, std::span<const ChatMessage> messages, size_t i) {
  const ChatMessage& m = messages[i];
  if (m.role != "assistant" || t.thinking.kept == ChatThinking::Kept::all) return {{}, m.content};
  const auto [content, thought] = without_thought(m.content);
  Kept kept{{}, std::string(content)};
  const bool since = static_cast<std::ptrdiff_t>(i) > last_question(messages);
  if (t.thinking.kept == ChatThinking::Kept::since_question && since &&
      (i + 1 == messages.size() || !thought.empty()))
    kept.thought = fmt::format("<think>\n{}\n</think>\n\n", thought);
  return kept;
}

// All others; chatml's tools.
std::string turns_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                         const Tools* tools) {
  std::string out(t.begin), system;
  const bool has_system = !messages.empty() && messages[0].role == "system";
  const std::string& first = has_system ? messages[0].content : t.default_system;
  if (tools != nullptr) {
    out.append(t.system.before).append(first).append(has_system || !first.empty() ? "\n\n" : "");
    out.append(tools_text(*tools, t.tools)).append(t.system.after);
    if (has_system) messages = messages.subspan(1);
  } else if (!has_system && !first.empty()) {
    out.append(t.system.before).append(first).append(t.system.after);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    if (m.role == "tool") {
      // What several of them say is one turn of the user.
      out += t.user.before;
      for (;; ++i) {
        out += "<tool_response>\n" + messages[i].content + "\n</tool_response>";
        if (i + 1 == messages.size() || messages[i + 1].role != "tool") break;
        out += "\n";
      }
      out += t.user.after;
      continue;
    }
    if (m.role == "system" && t.system.after.empty()) {
      system += m.content + "\n\n";
      continue;
    }
    const ChatTemplate::Turn& turn = m.role == "system" ? t.system
                                     : m.role == "user" ? t.user
                                                        : t.assistant;
    out += turn.before;
    if (m.role == "user") out += std::exchange(system, {});
    const Kept kept = kept_of(t, messages, i);
    out.append(kept.thought).append(kept.content);
    for (size_t k = 0; k < m.calls.size(); ++k)
      out += (k > 0 || !kept.content.empty() ? "\n" : "") + call_text(m.calls[k], t.tools);
    out += turn.after;
  }
  return out.append(t.open);
}

}  // namespace

const ChatTemplate* find_chat_template(std::string_view name) {
  for (const ChatTemplate& t : kTemplates)
    if (t.name == name) return &t;
  return nullptr;
}

std::vector<std::string> chat_template_names() {
  std::vector<std::string> names;
  for (const ChatTemplate& t : kTemplates) names.emplace_back(t.name);
  return names;
}

std::optional<ChatTemplate> chat_template_of_text(std::string_view jinja) {
  const auto has = [&](std::string_view text) { return jinja.find(text) != jinja.npos; };
  const bool later = has("[SYSTEM_PROMPT]");
  // With spaces behind marks (Large 2411) they are taken for the oldest, without tools.
  if (later && !has("[SYSTEM_PROMPT] "))
    return *find_chat_template(has("[CALL_ID]") ? "mistral-v11"
                               : has("[ARGS]")  ? "mistral-v13"
                                                : "mistral-v7");
  for (const ChatTemplate& t : kTemplates)
    if (!t.mark.empty() && has(t.mark) && !(later && is_mistral(t.tools))) {
      ChatTemplate own = t;
      if (t.tools != ToolFormat::llama) own.default_system = default_system_of(jinja, t.system);
      if (t.tools == ToolFormat::hermes) own.thinking = thinking_of(jinja);
      return own;
    }
  return std::nullopt;
}

ChatTemplate chat_template_of(const std::string& folder) {
  const std::string text = train::chat_template_text(folder);
  if (const auto known = chat_template_of_text(text)) return *known;
  if (!text.empty()) {
    log_warning(
        fmt::format("{}: its chat template is none of those known, plain is taken; "
                    "--chat-template chooses another",
                    folder));
  }
  return kTemplates[0];
}

std::string chat_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                        const Tools* tools, std::optional<bool> thinks, bool held) {
  std::string out = t.tools == ToolFormat::llama ? llama_prompt(t, messages, tools)
                    : is_mistral(t.tools)        ? mistral_prompt(t, messages, tools)
                                                 : turns_prompt(t, messages, tools);
  bool may_think = t.thinking.has_switch ? thinks.value_or(t.thinking.is_default) : true;
  // What is begun as a thought could not become what it is held to.
  if ((held || (tools != nullptr && tools->must_call)) && !t.thinking.on.empty()) may_think = false;
  out += may_think ? t.thinking.on : t.thinking.off;
  // A call that must be made is begun.
  if (tools != nullptr && tools->must_call) out += call_begins(t.tools);
  return out;
}

std::vector<int32_t> chat_ids(const data::Tokenizer& tokenizer, std::string_view prompt) {
  std::vector<int32_t> ids;
  tokenizer.encode_text(prompt, ids);
  const std::span<const int32_t> begin = tokenizer.sentence_begin();
  const bool there =
      ids.size() >= begin.size() && std::equal(begin.begin(), begin.end(), ids.begin());
  if (!there) ids.insert(ids.begin(), begin.begin(), begin.end());
  return ids;
}

}  // namespace saturate::serve
