// SPDX-License-Identifier: Apache-2.0
#include "serve/tool_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace saturate::serve {
namespace {

constexpr std::string_view kHermesBegins = "<tool_call>", kHermesEnds = "</tool_call>";
constexpr std::string_view kLlamaMark = "<|python_tag|>";  // before calls of some of its models
constexpr std::string_view kMistralMark = "[TOOL_CALLS]", kMistralId = "[CALL_ID]",
                           kMistralArguments = "[ARGS]";
constexpr std::string_view kSpaces = " \n\r\t";

std::string_view without_end(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

bool is_named(const Tools& tools, const std::string& name) {
  return std::ranges::any_of(tools.functions, [&](const Json& f) {
    const std::string* known = f["function"]["name"].if_string();
    return known != nullptr && *known == name;
  });
}

bool is_nine_letters(std::string_view id) {
  return id.size() == 9 && std::ranges::all_of(id, [](char c) {
           return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z');
         });
}

std::optional<Json> parsed(std::string_view text) {
  return try_parse_json(text, {.max_depth = 2 * kMostJsonLevels, .unique_names = false});
}

// {"name", "arguments"}; Llama's models write "parameters", and some of them "arguments".
bool take(const Tools& tools, ToolFormat format, const Json& call, SaidCalls& said) {
  const std::string* name = call["name"].if_string();
  const Json* arguments = call.find("arguments");
  if (format == ToolFormat::llama && call.find("parameters") != nullptr)
    arguments = call.find("parameters");
  if (name == nullptr || arguments == nullptr || arguments->if_object() == nullptr ||
      !is_named(tools, *name))
    return false;
  ToolCall one{*name, arguments->dump(), {}};
  const std::string* id = call["id"].if_string();
  if (is_mistral(format) && id != nullptr && is_nine_letters(*id) &&
      std::ranges::none_of(said.calls, [&](const ToolCall& c) { return c.id == *id; }))
    one.id = *id;
  said.calls.push_back(std::move(one));
  return true;
}

// One call each between <tool_call> and </tool_call>, text around them.
bool read_hermes(const Tools& tools, std::string_view text, SaidCalls& said) {
  std::string around;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find(kHermesBegins, at), text.size());
    around += text.substr(at, begin - at);
    if (begin == text.size()) break;
    const size_t call = begin + kHermesBegins.size();
    // It may lack its end, where a model stops behind the JSON, or where the end is a special token.
    const size_t end =
        std::min({text.find(kHermesEnds, call), text.find(kHermesBegins, call), text.size()});
    const auto value = parsed(text.substr(call, end - call));
    if (!value || !take(tools, ToolFormat::hermes, *value, said)) return false;
    at = text.substr(end).starts_with(kHermesEnds) ? end + kHermesEnds.size() : end;
  }
  said.content = without_end(around);
  return true;
}

// One call, which is all of the answer.
bool read_llama(const Tools& tools, std::string_view text, SaidCalls& said) {
  std::string_view call = trim(text);
  if (call.starts_with(kLlamaMark)) call = trim(call.substr(kLlamaMark.size()));
  const auto value = parsed(call);
  return value && take(tools, ToolFormat::llama, *value, said);
}

// Text, perhaps, then a list of calls, with the mark before it or alone.
bool read_mistral(const Tools& tools, std::string_view text, SaidCalls& said) {
  const size_t mark = text.find(kMistralMark);
  const bool marked = mark != text.npos;
  if (marked) said.content = without_end(text.substr(0, mark));
  const auto list = parsed(trim(marked ? text.substr(mark + kMistralMark.size()) : text));
  return list && list->if_array() != nullptr &&
         std::ranges::all_of(*list->if_array(), [&](const Json& call) {
           return take(tools, ToolFormat::mistral, call, said);
         });
}

// Text, perhaps, then calls with a mark each; where one must come the first mark was there before.
bool read_later_mistral(const Tools& tools, ToolFormat format, std::string_view text,
                        SaidCalls& said) {
  size_t mark = text.find(kMistralMark);
  if (mark == text.npos && !tools.must_call) return false;
  const bool begun = tools.must_call && (mark == text.npos || !trim(text.substr(0, mark)).empty());
  if (!begun) {
    said.content = without_end(text.substr(0, mark));
    text.remove_prefix(mark + kMistralMark.size());
  }
  for (bool more = true; more;) {
    const size_t end = std::min(text.find(kMistralMark), text.size());
    const std::string_view call = text.substr(0, end);
    more = end < text.size();
    text.remove_prefix(more ? end + kMistralMark.size() : end);
    size_t head = call.find(kMistralArguments), behind = kMistralArguments.size();
    if (head == call.npos) head = std::min(call.find('{'), call.size()), behind = 0;
    const auto arguments = parsed(trim(call.substr(std::min(head + behind, call.size()))));
    std::string_view name = call.substr(0, head), id;
    if (const size_t at = name.find(kMistralId); at != name.npos) {
      id = trim(name.substr(at + kMistralId.size()));
      name = trim(name.substr(0, at));
      if (id == nine_letters(name)) id = {};  // that of all calls that must come
    }
    const Json one = {{"name", std::string(trim(name))},
                      {"arguments", arguments.value_or(Json())},
                      {"id", std::string(id)}};
    if (!take(tools, format, one, said)) return false;
  }
  return true;
}

bool read(const Tools& tools, ToolFormat format, std::string_view text, SaidCalls& said) {
  switch (format) {
    case ToolFormat::none:
      return false;
    case ToolFormat::hermes: {
      if (!tools.must_call) return read_hermes(tools, text, said);
      const auto value = parsed(text);
      return value && take(tools, format, *value, said);
    }
    case ToolFormat::llama:
      return read_llama(tools, text, said);
    case ToolFormat::mistral:
      return read_mistral(tools, text, said);
    case ToolFormat::mistral_v11:
    case ToolFormat::mistral_v13:
      return read_later_mistral(tools, format, text, said);
  }
  return false;
}

// Where `mark` begins in `text`, or the end of it that may turn out to begin it.
size_t begin_of(std::string_view mark, std::string_view text) {
  const size_t at = text.find(mark);
  if (at != text.npos) return at;
  for (size_t n = std::min(mark.size() - 1, text.size()); n > 0; --n)
    if (text.ends_with(mark.substr(0, n))) return text.size() - n;
  return text.size();
}

// Of mistral: strings as JSON, where the published template writes them without escapes.
std::string function_text(const Json& tool) {
  return R"({"type": "function", "function": )" + python_json(tool["function"]) + "}";
}

}  // namespace

std::string python_json(const Json& value, int indent) {
  const auto with = [&](const auto& self, const Json& v, int level) -> std::string {
    const bool lines = indent >= 0;
    const auto line = [&](int depth) {
      return lines ? "\n" + std::string(static_cast<size_t>(indent * depth), ' ') : std::string();
    };
    const std::string between = lines ? "," : ", ";
    std::string out;
    if (const Json::Array* list = v.if_array()) {
      for (const Json& each : *list)
        out += (out.empty() ? "" : between) + line(level + 1) + self(self, each, level + 1);
      return "[" + out + (out.empty() ? "" : line(level)) + "]";
    }
    if (const Json::Object* object = v.if_object()) {
      for (const auto& [key, each] : *object)
        out += (out.empty() ? "" : between) + line(level + 1) + Json(key).dump() + ": " +
               self(self, each, level + 1);
      return "{" + out + (out.empty() ? "" : line(level)) + "}";
    }
    return v.dump();
  };
  return with(with, value, 0);
}

std::string tools_text(const Tools& tools, ToolFormat format) {
  std::string text;
  switch (format) {
    case ToolFormat::none:
      break;
    case ToolFormat::hermes:
      text =
          "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
          "provided with function signatures within <tools></tools> XML tags:\n<tools>";
      for (const Json& each : tools.functions) text += "\n" + python_json(each);
      text +=
          "\n</tools>\n\nFor each function call, return a json object with function name and "
          "arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": "
          "<function-name>, \"arguments\": <args-json-object>}\n</tool_call>";
      break;
    case ToolFormat::llama:
      text =
          "Given the following functions, please respond with a JSON for a function call with its "
          "proper arguments that best answers the given prompt.\n\nRespond in the format "
          "{\"name\": "
          "function name, \"parameters\": dictionary of argument name and its value}.Do not use "
          "variables.\n\n";
      for (const Json& each : tools.functions) text += python_json(each, 4) + "\n\n";
      break;
    case ToolFormat::mistral:
    case ToolFormat::mistral_v11:
    case ToolFormat::mistral_v13:
      for (const Json& each : tools.functions)
        text += (text.empty() ? "[" : ", ") + function_text(each);
      text += "]";
  }
  return text;
}

std::string call_text(const ToolCall& call, ToolFormat format) {
  const std::string name = Json(call.name).dump();
  const std::optional<Json> value = parsed(call.arguments);
  const std::string arguments = value ? python_json(*value) : call.arguments;
  if (format == ToolFormat::hermes)
    return fmt::format("{}\n{{\"name\": {}, \"arguments\": {}}}\n{}", kHermesBegins, name,
                       arguments, kHermesEnds);
  if (format == ToolFormat::llama)
    return fmt::format(R"({{"name": {}, "parameters": {}}})", name, arguments);
  if (format == ToolFormat::mistral_v13)
    return fmt::format("{}{}{}", call.name, kMistralArguments, arguments);
  if (format == ToolFormat::mistral_v11)
    return fmt::format("{}{}{}{}{}", call.name, kMistralId, nine_letters(call.id),
                       kMistralArguments, arguments);
  return fmt::format(R"({{"name": {}, "arguments": {}, "id": "{}"}})", name, arguments,
                     nine_letters(call.id));
}

std::string_view call_begins(ToolFormat format) {
  return format == ToolFormat::hermes ? "<tool_call>\n"
         : is_mistral(format)         ? kMistralMark
                                      : std::string_view();
}

std::string_view call_mark(ToolFormat format) {
  return format == ToolFormat::hermes  ? kHermesBegins
         : format == ToolFormat::llama ? kLlamaMark
         : is_mistral(format)          ? kMistralMark
                                       : std::string_view();
}

std::vector<std::string_view> call_marks(ToolFormat format) {
  std::vector<std::string_view> marks;
  if (const std::string_view mark = call_mark(format); !mark.empty()) marks.push_back(mark);
  if (format == ToolFormat::mistral_v11) marks.push_back(kMistralId);
  if (format == ToolFormat::mistral_v11 || format == ToolFormat::mistral_v13)
    marks.push_back(kMistralArguments);
  return marks;
}

std::string nine_letters(std::string_view id) {
  if (is_nine_letters(id)) return std::string(id);
  uint64_t hash = 0xCBF29CE484222325u;  // FNV-1a, then mixed
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  hash ^= hash >> 32;
  hash *= 0x9E3779B97F4A7C15u;
  hash ^= hash >> 29;
  constexpr std::string_view kLetters =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string nine;
  for (; nine.size() < 9; hash /= kLetters.size()) nine += kLetters[hash % kLetters.size()];
  return nine;
}

SaidCalls said_calls(const Tools& tools, ToolFormat format, const std::string& text) {
  SaidCalls said;
  if (!read(tools, format, text, said) || said.calls.empty()) return {text, {}};
  if (!tools.several) said.calls.resize(1);
  return said;
}

size_t certain_content(const Tools& tools, ToolFormat format, std::string_view text) {
  if (tools.must_call) return 0;
  if (format == ToolFormat::none) return text.size();
  // Behind spaces, which are before any call.
  const std::string_view begun =
      text.substr(std::min(text.find_first_not_of(kSpaces), text.size()));
  if (format == ToolFormat::llama) {
    // A call is all of an answer, and an answer that begins otherwise is none.
    const bool may_be =
        begun.starts_with('{') || begun.starts_with(kLlamaMark) || kLlamaMark.starts_with(begun);
    return may_be ? 0 : text.size();
  }
  if (format == ToolFormat::mistral && begun.starts_with('[')) return 0;
  // What is before a call stays as it is but for the spaces at its end.
  const std::string_view mark = format == ToolFormat::hermes ? kHermesBegins : kMistralMark;
  return without_end(text.substr(0, begin_of(mark, text))).size();
}

Json calls_json(const std::vector<ToolCall>& calls, ToolFormat format, const std::string& id,
                bool stream) {
  Json list{Json::Array{}};
  for (size_t i = 0; i < calls.size(); ++i) {
    std::string own = fmt::format("call-{}-{}", id, i);
    if (is_mistral(format)) own = nine_letters(own);
    Json call{Json::Object{}};
    if (stream) call["index"] = Json(i);
    call["id"] = calls[i].id.empty() ? own : calls[i].id;
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    list.push_back(std::move(call));
  }
  return list;
}

}  // namespace saturate::serve
