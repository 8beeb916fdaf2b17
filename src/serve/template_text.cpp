// SPDX-License-Identifier: Apache-2.0
#include "serve/template_text.h"

#include <algorithm>
#include <optional>

namespace saturate::serve {
namespace {

constexpr std::string_view kBegins = "<think>", kEnds = "</think>",
                           kEmpty = "<think>\n\n</think>\n\n", kOpen = "<think>\n";

// The text that begins behind a quote, up to that quote again; none where it has no end.
std::optional<std::string> quoted(std::string_view text, char quote) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == quote) return out;
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    out += c == 'n' ? '\n' : c == 't' ? '\t' : c;
  }
  return std::nullopt;
}

std::string_view without_lines(std::string_view text) {  // at both ends
  const size_t first = text.find_first_not_of('\n');
  return first == text.npos ? std::string_view()
                            : text.substr(first, text.find_last_not_of('\n') + 1 - first);
}

}  // namespace

std::string default_system_of(std::string_view jinja, const ChatTemplate::Turn& system) {
  if (system.before.empty() || system.after.empty()) return {};
  // Line feeds are written in two ways, so what stands before them is looked for.
  const std::string_view mark = system.before.substr(0, system.before.find('\n'));
  const std::string_view end = system.after.substr(0, system.after.find('\n'));
  for (size_t at = 0; (at = jinja.find(mark, at)) != jinja.npos; at += mark.size()) {
    if (at == 0 || (jinja[at - 1] != '\'' && jinja[at - 1] != '"')) continue;
    const std::optional<std::string> text = quoted(jinja.substr(at), jinja[at - 1]);
    if (!text || !text->starts_with(system.before)) continue;
    const size_t until = text->find(end, system.before.size());
    if (until != text->npos && until > system.before.size())
      return text->substr(system.before.size(), until - system.before.size());
  }
  return {};
}

ChatThinking thinking_of(std::string_view jinja) {
  ChatThinking out;
  const size_t opens = jinja.rfind("add_generation_prompt");
  if (opens != jinja.npos) {
    std::string tail(jinja.substr(opens));
    for (size_t at; (at = tail.find("\\n")) != tail.npos;) tail.replace(at, 2, "\n");
    out.has_switch = tail.find("enable_thinking") != tail.npos;
    if (const size_t at = tail.find(kEmpty); at != tail.npos) {
      out.off = kEmpty;
      tail.erase(at, kEmpty.size());
    }
    if (tail.find(kOpen) != tail.npos) out.on = kOpen;
    // "is defined and enable_thinking is true" asks for it, "is not defined or ..." does not.
    out.is_default = tail.find("enable_thinking is true") == tail.npos ||
                     tail.find("enable_thinking is not defined") != tail.npos;
  }
  if (jinja.find("split('</think>')") != jinja.npos)
    out.kept = jinja.find("last_query_index") != jinja.npos ? ChatThinking::Kept::since_question
                                                            : ChatThinking::Kept::none;
  return out;
}

ThoughtAnswer without_thought(std::string_view answer) {
  const size_t end = answer.find(kEnds);
  if (end == answer.npos) return {answer, {}};
  std::string_view thought = answer.substr(0, end),
                   content = answer.substr(answer.rfind(kEnds) + kEnds.size());
  if (const size_t begin = thought.rfind(kBegins); begin != thought.npos)
    thought = thought.substr(begin + kBegins.size());
  content.remove_prefix(std::min(content.find_first_not_of('\n'), content.size()));
  return {content, without_lines(thought)};
}

}  // namespace saturate::serve
