// SPDX-License-Identifier: Apache-2.0
#include "serve/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "serve/json/token_bytes.h"
#include "serve/request_error.h"
#include "serve/tool_format.h"

namespace saturate::serve {
namespace {

using Node = JsonSchema::Node;

constexpr int32_t kMostForcedCalls = 16;  // of one answer: it ends

[[noreturn]] void refuse(const char* field, const std::string& where, std::string_view what) {
  throw FieldError("request", fmt::format("{}: {}", where, what), field);
}

const std::string& name_of(const Json& function) {
  return *function["function"]["name"].if_string();
}

// What stands before the arguments; an id is the same for all, since an answer gives its calls ids of its own.
std::string call_head(const std::string& name, ToolFormat format) {
  const auto byte = [](std::string_view mark) {
    return std::ranges::find(kTokenMarks, mark, &TokenMark::name)->byte;
  };
  std::string head = name;
  if (format == ToolFormat::mistral_v11) head += byte("[CALL_ID]") + nine_letters(name);
  return head + byte("[ARGS]");
}

// One call of any of the functions `chosen`, whose parameters are a schema each; of mistral a list of up to `most`.
JsonSchema call_schema(const std::vector<std::pair<std::string, JsonSchema>>& chosen,
                       ToolFormat format, int32_t most) {
  const char* const arguments_name = format == ToolFormat::llama ? "parameters\"" : "arguments\"";
  JsonSchema all;
  const auto add = [&](Node node) {
    all.nodes.push_back(std::move(node));
    return static_cast<int32_t>(all.nodes.size() - 1);
  };
  all.root = add({.kind = Node::Kind::any_of, .levels = kMostJsonLevels});
  for (const auto& [name, parameters] : chosen) {
    const int32_t arguments = append_schema(all, parameters);
    if (format == ToolFormat::mistral_v11 || format == ToolFormat::mistral_v13) {
      const int32_t own = all.nodes[static_cast<size_t>(arguments)].levels;
      const int32_t call = add({.kind = Node::Kind::prefixed,
                                .items = arguments,
                                .texts = {call_head(name, format)},
                                .levels = own});
      Node& root = all.nodes[static_cast<size_t>(all.root)];
      root.alternatives.push_back(call);
      root.levels = std::min(root.levels, own);
      continue;
    }
    const int32_t levels = all.nodes[static_cast<size_t>(arguments)].levels + 1;
    const int32_t called = add({.kind = Node::Kind::literal, .texts = {Json(name).dump()}});
    const int32_t call =
        add({.kind = Node::Kind::object,
             .properties = {{"name\"", called, true}, {arguments_name, arguments, true}},
             .levels = levels});
    Node& root = all.nodes[static_cast<size_t>(all.root)];
    root.alternatives.push_back(call);
    root.levels = std::min(root.levels, levels);
  }
  if (format == ToolFormat::mistral) {
    const int32_t levels = all.nodes[static_cast<size_t>(all.root)].levels + 1;
    all.root = add(
        {.kind = Node::Kind::array, .items = all.root, .least = 1, .most = most, .levels = levels});
  }
  return all;
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

// Leaves those that {"mode", "tools"} names; others the model is not told of.
void keep_allowed(const Json& allowed, Tools& tools) {
  constexpr const char *kField = "tool_choice", *kWhere = "tool_choice.allowed_tools";
  const Json& mode = allowed["mode"];
  if (mode != Json("auto") && mode != Json("required"))
    refuse(kField, fmt::format("{}.mode", kWhere), "it must be auto or required");
  tools.must_call = mode == Json("required");
  const Json::Array* list = allowed["tools"].if_array();
  if (list == nullptr || list->empty())
    refuse(kField, fmt::format("{}.tools", kWhere), "it must be a list of at least one tool");
  std::vector<bool> kept(tools.functions.size());
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("{}.tools[{}]", kWhere, i);
    const Json& one = (*list)[i];
    const std::string* name = one["function"]["name"].if_string();
    if (one["type"] != Json("function") || name == nullptr)
      refuse(kField, where, "it must be {\"type\": \"function\", \"function\": {\"name\"}}");
    const auto same = [&](const Json& f) { return name_of(f) == *name; };
    const auto at = std::ranges::find_if(tools.functions, same);
    if (at == tools.functions.end()) refuse(kField, where, "no tool has the name " + *name);
    kept[static_cast<size_t>(at - tools.functions.begin())] = true;
  }
  const Json::Array all = std::exchange(tools.functions, {});
  tools.places.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    if (!kept[i]) continue;
    tools.functions.push_back(all[i]);
    tools.places.push_back(i);
  }
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
  for (size_t i = 0; i < tools.functions.size(); ++i) tools.places.push_back(i);
  tools.several = parallel.is_null() || *parallel.if_bool();
  if (choice == Json("none")) return nullptr;
  if (choice == Json("required")) {
    tools.must_call = true;
  } else if (choice["type"] == Json("function")) {
    const std::string* name = choice["function"]["name"].if_string();
    if (name == nullptr || name->empty())
      refuse("tool_choice", "tool_choice.function.name", "give the name of a tool");
    if (std::ranges::none_of(tools.functions, [&](const Json& f) { return name_of(f) == *name; }))
      refuse("tool_choice", "tool_choice", "no tool has the name " + *name);
    tools.must_call = true;
    tools.only = *name;
  } else if (choice["type"] == Json("allowed_tools")) {
    keep_allowed(choice["allowed_tools"], tools);
  } else if (!choice.is_null() && choice != Json("auto")) {
    refuse("tool_choice", "tool_choice",
           "it must be none, auto, required, {\"type\": \"function\", \"function\": {\"name\"}} or "
           "{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\", \"tools\"}}");
  }
  return std::make_shared<const Tools>(std::move(tools));
}

std::shared_ptr<const ResponseFormat> held_call(const Tools& tools, ToolFormat format) {
  std::vector<std::pair<std::string, JsonSchema>> chosen;
  const bool list = format == ToolFormat::mistral;
  const int32_t most = tools.several && tools.only.empty() ? kMostForcedCalls : 1;
  std::string name = fmt::format("call {} {}", static_cast<int>(format), list ? most : 1);
  PatternBudget budget;
  for (size_t i = 0; i < tools.functions.size(); ++i) {
    const Json& function = tools.functions[i]["function"];
    if (!tools.only.empty() && name_of(tools.functions[i]) != tools.only) continue;
    const Json* given = function.find("parameters");
    const Json nothing = {{"type", "object"}, {"properties", Json(Json::Object{})}};
    const Json& parameters = given != nullptr && !given->is_null() ? *given : nothing;
    const std::string where = fmt::format("tools[{}].function.parameters", tools.places[i]);
    try {
      JsonSchema schema = compile_json_schema(parameters, where, &budget);
      const Node& root = schema.nodes[static_cast<size_t>(schema.root)];
      if (root.kind != Node::Kind::object) refuse("tools", where, "its type must be object");
      if (root.levels + (list ? 2 : 1) > kMostJsonLevels)
        refuse("tools", where, "it nests too deep; make it flatter");
      chosen.emplace_back(name_of(tools.functions[i]), std::move(schema));
    } catch (const Error& e) {
      if (tools.must_call) throw FieldError("request", message_of(e.what()), "tools");
      chosen.emplace_back(name_of(tools.functions[i]),
                          compile_json_schema(Json{{"type", "object"}}, where));
    }
    name += Json(name_of(tools.functions[i])).dump() + parameters.dump();
  }
  return std::make_shared<const ResponseFormat>(
      ResponseFormat{.name = name, .schema = call_schema(chosen, format, most), .field = "tools"});
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
    const std::string* id = call["id"].if_string();
    calls.push_back({*name, *arguments, id != nullptr ? *id : std::string()});
  }
  return calls;
}

}  // namespace saturate::serve
