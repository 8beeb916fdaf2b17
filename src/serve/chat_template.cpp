// SPDX-License-Identifier: Apache-2.0
#include "serve/chat_template.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "train/corpora.h"

namespace saturate::serve {
namespace {

// As the models' own tokenizer_config.json write them.
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
     .tools = true},
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
    {.name = "mistral",
     .mark = "[INST]",
     .begin = "<s>",
     .system = {},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {" ", "</s>"},
     .open = "",
     .stop = "[INST]"},
};

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

const ChatTemplate& chat_template_of(const std::string& folder) {
  const std::string text = train::chat_template_text(folder);
  for (const ChatTemplate& t : kTemplates)
    if (!t.mark.empty() && text.find(t.mark) != std::string::npos) return t;
  if (!text.empty()) {
    log_warning(
        fmt::format("{}: its chat template is none of those known, plain is taken; "
                    "--chat-template chooses another",
                    folder));
  }
  return kTemplates[0];
}

std::string chat_prompt(const ChatTemplate& t, std::span<const ChatMessage> messages,
                        const Tools* tools) {
  std::string out(t.begin), system;
  if (tools != nullptr) {
    out += t.system.before;
    if (!messages.empty() && messages[0].role == "system") {
      out += messages[0].content + "\n\n";
      messages = messages.subspan(1);
    }
    out.append(tools_text(*tools)).append(t.system.after);
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
    out += m.content;
    for (size_t k = 0; k < m.calls.size(); ++k)
      out += (k > 0 || !m.content.empty() ? "\n" : "") + call_text(m.calls[k]);
    out += turn.after;
  }
  out += t.open;
  // A call that must be made is begun.
  if (tools != nullptr && tools->forced) out.append(kCallBegins).append("\n");
  return out;
}

}  // namespace saturate::serve
