// SPDX-License-Identifier: Apache-2.0
// How models write calls of functions, and how what others have called is told them: a form for each family
// of chat templates.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/tools.h"

namespace saturate::serve {

// JSON as Python's json.dumps writes it, which templates fill in: a space behind commas and colons, or with
// `indent` >= 0 a line for each member and element.
std::string python_json(const Json& value, int indent = -1);

// What a model reads of functions, in the place that its template has for them: the system message of hermes,
// the first message of the user of llama, before the last one of mistral.
std::string tools_text(const Tools& tools, ToolFormat format);
// A call as a model writes it; of mistral one element of the list, or what is behind its mark.
std::string call_text(const ToolCall& call, ToolFormat format);
// What a model finds begun where it must call.
std::string_view call_begins(ToolFormat format);
// What begins a call and is perhaps a special token, which is no text otherwise; empty: nothing is.
std::string_view call_mark(ToolFormat format);
// It, and others of its kind within a call.
std::vector<std::string_view> call_marks(ToolFormat format);

// An id as Mistral's models know them, nine letters or digits: `id` itself where it is one, else one made of it.
std::string nine_letters(std::string_view id);

// What an answer holds: calls and the text around them. Calls that are no JSON, or of functions that there are
// not, are text, and all others with them.
struct SaidCalls {
  std::string content;
  std::vector<ToolCall> calls;
};
SaidCalls said_calls(const Tools& tools, ToolFormat format, const std::string& text);

// So much of an unfinished answer is content in any case.
size_t certain_content(const Tools& tools, ToolFormat format, std::string_view text);

// As answers give them, `id` before the number of each; of a stream with "index".
Json calls_json(const std::vector<ToolCall>& calls, ToolFormat format, const std::string& id,
                bool stream);

}  // namespace saturate::serve
