// SPDX-License-Identifier: Apache-2.0
// "tools" of chats: functions that a model may ask to be called, as Qwen's and Hermes' models have learnt it
// (<tool_call>{"name": ..., "arguments": {...}}</tool_call>).
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "serve/response_format.h"

namespace saturate::serve {

constexpr std::string_view kCallBegins = "<tool_call>", kCallEnds = "</tool_call>";

struct ToolCall {
  std::string name, arguments;  // an object, as JSON
};

// What a chat may call. Immutable.
struct Tools {
  Json::Array functions;  // {"type": "function", "function": {...}}
  std::shared_ptr<const ResponseFormat>
      forced;           // the answer is one call, of this form; none: it may be
  bool several = true;  // calls in one answer
};

// Of the fields tools, tool_choice and parallel_tool_calls; none where there are no tools, or the choice is
// "none". Errors: FieldError with the place; of parameters that cannot be held to, where a call is forced.
std::shared_ptr<const Tools> parse_tools(const Json& body);

// Calls of a message that an assistant said before. Errors: FieldError of messages.
std::vector<ToolCall> parse_calls(const Json& tool_calls);

// What a system message says of them.
std::string tools_text(const Tools& tools);
// As a model writes it.
std::string call_text(const ToolCall& call);

// What an answer holds: calls and the text around them. Calls that are no JSON, or of functions that there are
// not, are text, and all others with them.
struct SaidCalls {
  std::string content;
  std::vector<ToolCall> calls;
};
SaidCalls said_calls(const Tools& tools, const std::string& text);

// So much of an unfinished answer is content in any case.
size_t certain_content(const Tools& tools, std::string_view text);

// As answers give them, `id` before the number of each; of a stream with "index".
Json calls_json(const std::vector<ToolCall>& calls, const std::string& id, bool stream);

}  // namespace saturate::serve
