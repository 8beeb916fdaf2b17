// SPDX-License-Identifier: Apache-2.0
// "tools" of chats: functions that a model may ask to be called. How a family of models writes it: tool_format.h.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/response_format.h"

namespace saturate::serve {

// hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call>, Qwen's models too. llama: {"name": ...,
// "parameters": {...}}, one in an answer. mistral: [TOOL_CALLS] [{"name": ..., "arguments": {...}, "id": ...}];
// later [TOOL_CALLS]name[CALL_ID]id[ARGS]{...} (mistral_v11), and without ids (mistral_v13), each call with its mark.
enum class ToolFormat : uint8_t { none, hermes, llama, mistral, mistral_v11, mistral_v13 };
constexpr bool is_mistral(ToolFormat f) {
  return f == ToolFormat::mistral || f == ToolFormat::mistral_v11 || f == ToolFormat::mistral_v13;
}

struct ToolCall {
  std::string name, arguments;  // an object, as JSON
  std::string id = {};          // as others gave it; empty: none
};

// What a chat may call. Immutable.
struct Tools {
  Json::Array
      functions;  // {"type": "function", "function": {...}}; of allowed_tools those that are named
  std::vector<size_t> places = {};  // of each in the request's list
  bool must_call = false;           // the answer is a call
  std::string only = {};            // and of this function; empty: of any
  bool several = true;              // calls in one answer
};

// Of the fields tools, tool_choice and parallel_tool_calls; none where there are no tools, or the choice is
// "none". Errors: FieldError with the place.
std::shared_ptr<const Tools> parse_tools(const Json& body);

// What an answer is held to that calls: one call; of mistral a list of them, of one where a function is named or
// several may not come. Errors: FieldError with the place of parameters that cannot be held to; where no call must
// come such parameters are any object.
std::shared_ptr<const ResponseFormat> held_call(const Tools& tools, ToolFormat format);

// Calls of a message that an assistant said before. Errors: FieldError of messages.
std::vector<ToolCall> parse_calls(const Json& tool_calls);

}  // namespace saturate::serve
