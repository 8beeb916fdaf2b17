// SPDX-License-Identifier: Apache-2.0
#include "serve/tools.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "serve/request_error.h"

namespace saturate::serve {
namespace {

using Node = JsonSchema::Node;

[[noreturn]] void refuse(const char* field, const std::string& where, std::string_view what) {
  throw FieldError("request", fmt::format("{}: {}", where, what), field);
}

// With a space behind commas and colons, as templates write what a model has learnt to read.
std::string spaced(const Json& value) {
  std::string out;
  if (const Json::Array* list = value.if_array()) {
    for (const Json& each : *list) out += (out.empty() ? "" : ", ") + spaced(each);
    return "[" + out + "]";
  }
  if (const Json::Object* object = value.if_object()) {
    for (const auto& [key, each] : *object)
      out += (out.empty() ? "" : ", ") + Json(key).dump() + ": " + spaced(each);
    return "{" + out + "}";
  }
  return value.dump();
}

const std::string& name_of(const Json& function) {
  return *function["function"]["name"].if_string();
}

// One call of any of the functions `chosen`. The parameters of each are a schema of their own.
JsonSchema call_schema(const std::vector<std::pair<std::string, JsonSchema>>& chosen) {
  JsonSchema all;
  const auto add = [&](Node node) {
    all.nodes.push_back(std::move(node));
    return static_cast<int32_t>(all.nodes.size() - 1);
  };
  all.root = add({.kind = Node::Kind::any_of, .levels = kMostJsonLevels});
  for (const auto& [name, parameters] : chosen) {
    const auto offset = static_cast<int32_t>(all.nodes.size());
    const auto patterns = static_cast<int32_t>(all.patterns.size());
    all.patterns.insert(all.patterns.end(), parameters.patterns.begin(), parameters.patterns.end());
    for (Node n : parameters.nodes) {
      for (int32_t& each : n.alternatives) each += offset;
      for (JsonSchema::Property& p : n.properties) p.node += offset;
      if (n.rest >= 0) n.rest += offset;
      if (n.items >= 0) n.items += offset;
      if (n.pattern >= 0) n.pattern += patterns;
      add(std::move(n));
    }
    const int32_t arguments = parameters.root + offset;
    const int32_t levels = all.nodes[static_cast<size_t>(arguments)].levels + 1;
    const int32_t called = add({.kind = Node::Kind::literal, .texts = {Json(name).dump()}});
    const int32_t call =
        add({.kind = Node::Kind::object,
             .properties = {{"name\"", called, true}, {"arguments\"", arguments, true}},
             .levels = levels});
    Node& root = all.nodes[static_cast<size_t>(all.root)];
    root.alternatives.push_back(call);
    root.levels = std::min(root.levels, levels);
  }
  return all;
}

// `only`: the function that is to be called; empty: any.
std::shared_ptr<const ResponseFormat> forced_call(const Json::Array& functions,
                                                  const std::string& only) {
  std::vector<std::pair<std::string, JsonSchema>> chosen;
  std::string name = "call";
  PatternBudget budget;
  for (size_t i = 0; i < functions.size(); ++i) {
    if (!only.empty() && name_of(functions[i]) != only) continue;
    const Json* given = functions[i]["function"].find("parameters");
    const Json nothing = {{"type", "object"}, {"properties", Json(Json::Object{})}};
    const Json& parameters = given != nullptr && !given->is_null() ? *given : nothing;
    const std::string where = fmt::format("tools[{}].function.parameters", i);
    try {
      JsonSchema schema = compile_json_schema(parameters, where, &budget);
      const Node& root = schema.nodes[static_cast<size_t>(schema.root)];
      if (root.kind != Node::Kind::object) refuse("tools", where, "its type must be object");
      if (root.levels >= kMostJsonLevels)
        refuse("tools", where, "it nests too deep; make it flatter");
      chosen.emplace_back(name_of(functions[i]), std::move(schema));
    } catch (const FieldError&) {
      throw;
    } catch (const Error& e) {
      throw FieldError("request", message_of(e.what()), "tools");
    }
    name += Json(name_of(functions[i])).dump() + parameters.dump();
  }
  if (chosen.empty()) refuse("tool_choice", "tool_choice", "no tool has the name " + only);
  return std::make_shared<const ResponseFormat>(ResponseFormat{name, call_schema(chosen)});
}

Json::Array parse_functions(const Json& tools) {
  const Json::Array* list = tools.if_array();
  if (list == nullptr) refuse("tools", "tools", "it must be a list");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Json& tool = (*list)[i];
    if (tool["type"] != Json("function") || tool["function"].if_object() == nullptr)
      refuse("tools", where,
             "only {\"type\": \"function\", \"function\": {\"name\", ...}} is supported");
    const std::string* name = tool["function"]["name"].if_string();
    if (name == nullptr || name->empty())
      refuse("tools", where + ".function.name", "give its name");
    for (size_t j = 0; j < i; ++j)
      if (name_of((*list)[j]) == *name)
        refuse("tools", where + ".function.name", *name + " is there twice; rename one");
    for (const auto& [key, value] : *tool["function"].if_object())
      if (key != "name" && key != "description" && key != "parameters" && key != "strict")
        refuse("tools", where + ".function." + key, "it is not supported; leave it out");
  }
  return *list;
}

}  // namespace

std::shared_ptr<const Tools> parse_tools(const Json& body) {
  const Json &choice = body["tool_choice"], &parallel = body["parallel_tool_calls"];
  if (!parallel.is_null() && parallel.if_bool() == nullptr)
    refuse("parallel_tool_calls", "parallel_tool_calls", "it must be true or false");
  if (body["tools"].is_null() || body["tools"] == Json(Json::Array{})) {
    if (!choice.is_null() && choice != Json("none") && choice != Json("auto"))
      refuse("tool_choice", "tool_choice", "there are no tools to choose from; give \"tools\"");
    return nullptr;
  }
  Tools tools;
  tools.functions = parse_functions(body["tools"]);
  tools.several = parallel.is_null() || *parallel.if_bool();
  if (choice == Json("none")) return nullptr;
  if (choice == Json("required")) {
    tools.forced = forced_call(tools.functions, "");
  } else if (choice["type"] == Json("function")) {
    const std::string* name = choice["function"]["name"].if_string();
    if (name == nullptr || name->empty())
      refuse("tool_choice", "tool_choice.function.name", "give the name of a tool");
    tools.forced = forced_call(tools.functions, *name);
  } else if (!choice.is_null() && choice != Json("auto")) {
    refuse("tool_choice", "tool_choice",
           "it must be none, auto, required or {\"type\": \"function\", \"function\": {\"name\"}}");
  }
  return std::make_shared<const Tools>(std::move(tools));
}

std::vector<ToolCall> parse_calls(const Json& tool_calls) {
  std::vector<ToolCall> calls;
  if (tool_calls.is_null()) return calls;
  const Json::Array* list = tool_calls.if_array();
  if (list == nullptr) refuse("messages", "tool_calls", "it must be a list");
  for (const Json& call : *list) {
    const std::string *name = call["function"]["name"].if_string(),
                      *arguments = call["function"]["arguments"].if_string();
    if (name == nullptr || arguments == nullptr || !try_parse_json(*arguments))
      refuse("messages", "tool_calls",
             "each must be {\"id\", \"type\": \"function\", \"function\": {\"name\", "
             "\"arguments\": JSON in a "
             "string}}");
    calls.push_back({*name, *arguments});
  }
  return calls;
}

std::string tools_text(const Tools& tools) {
  std::string text =
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
      "provided "
      "with function signatures within <tools></tools> XML tags:\n<tools>";
  for (const Json& each : tools.functions) text += "\n" + spaced(each);
  return text +
         "\n</tools>\n\nFor each function call, return a json object with function name and "
         "arguments within "
         "<tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
         "\"arguments\": "
         "<args-json-object>}\n</tool_call>";
}

std::string call_text(const ToolCall& call) {
  return fmt::format("{}\n{{\"name\": {}, \"arguments\": {}}}\n{}", kCallBegins,
                     Json(call.name).dump(), call.arguments, kCallEnds);
}

SaidCalls said_calls(const Tools& tools, const std::string& text) {
  SaidCalls said;
  const auto take = [&](std::string_view call) {
    const auto value =
        try_parse_json(call, {.max_depth = 2 * kMostJsonLevels, .unique_names = false});
    if (!value || (*value)["name"].if_string() == nullptr ||
        (*value)["arguments"].if_object() == nullptr)
      return false;
    const std::string& name = *(*value)["name"].if_string();
    if (std::ranges::none_of(tools.functions, [&](const Json& f) { return name_of(f) == name; }))
      return false;
    said.calls.push_back({name, (*value)["arguments"].dump()});
    return true;
  };
  if (tools.forced) {
    if (!take(text)) return {text, {}};
    return said;
  }
  std::string around;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = std::min(text.find(kCallBegins, at), text.size());
    around += text.substr(at, begin - at);
    if (begin == text.size()) break;
    const size_t call = begin + kCallBegins.size();
    // The last may lack its end, where a model stops behind the JSON.
    const size_t end = std::min(text.find(kCallEnds, call), text.size());
    if (!take(std::string_view(text).substr(call, end - call))) return {text, {}};
    at = std::min(end + kCallEnds.size(), text.size());
  }
  if (said.calls.empty()) return {text, {}};
  if (!tools.several) said.calls.resize(1);
  // The beginning stays as it is: it may have been sent.
  const size_t last = around.find_last_not_of(" \n\r\t");
  said.content = last == around.npos ? "" : around.substr(0, last + 1);
  return said;
}

size_t certain_content(const Tools& tools, std::string_view text) {
  if (tools.forced) return 0;
  size_t end = std::min(text.find(kCallBegins), text.size());
  if (end == text.size()) {
    for (size_t n = std::min(kCallBegins.size() - 1, text.size()); n > 0; --n)
      if (text.ends_with(kCallBegins.substr(0, n))) {
        end -= n;
        break;
      }
  }
  const size_t last = text.substr(0, end).find_last_not_of(" \n\r\t");
  return last == text.npos ? 0 : last + 1;
}

Json calls_json(const std::vector<ToolCall>& calls, const std::string& id, bool stream) {
  Json list{Json::Array{}};
  for (size_t i = 0; i < calls.size(); ++i) {
    Json call{Json::Object{}};
    if (stream) call["index"] = Json(i);
    call["id"] = fmt::format("call-{}-{}", id, i);
    call["type"] = "function";
    call["function"] = {{"name", calls[i].name}, {"arguments", calls[i].arguments}};
    list.push_back(std::move(call));
  }
  return list;
}

}  // namespace saturate::serve
