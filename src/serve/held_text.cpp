// SPDX-License-Identifier: Apache-2.0
#include "serve/held_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "serve/json/text_schema.h"
#include "serve/request_error.h"

namespace saturate::serve {
namespace {

constexpr size_t kMostChoices = 4096;        // as values of an enum
constexpr size_t kMostChoiceBytes = 4096;    // of one: each byte is compared with what is there
constexpr size_t kMostPatternBytes = 65536;  // more would have too many states
constexpr std::string_view kNoGrammar =
    "grammars are not supported; give a schema, a regular expression or a list of choices";

enum class Kind : uint8_t { json, regex, choice, object };

// Where a field says it: within structured_outputs, or by itself.
struct Field {
  std::string_view key;
  Kind kind;
};
constexpr Field kParts[] = {{"json", Kind::json},
                            {"regex", Kind::regex},
                            {"choice", Kind::choice},
                            {"json_object", Kind::object}};
constexpr Field kFields[] = {{"guided_json", Kind::json},
                             {"guided_regex", Kind::regex},
                             {"guided_choice", Kind::choice},
                             {"regex", Kind::regex},
                             {"json_schema", Kind::json}};

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "request", fmt::format("{}: {}", where, what));
}

ResponseFormat held_to_schema(const Json& value, const std::string& where) {
  const std::string* text = value.if_string();
  const std::optional<Json> read = text != nullptr ? try_parse_json(*text) : std::nullopt;
  const Json& schema = read ? *read : value;
  if (schema.if_object() == nullptr)
    refuse(where,
           text != nullptr && !read
               ? "the string is no JSON; give a JSON Schema as an object, or as JSON in a string"
               : "it must be a JSON Schema: an object, or one as JSON in a string");
  return {.name = schema.dump(), .schema = compile_json_schema(schema, where)};
}

ResponseFormat held_to_pattern(const Json& value, const std::string& where) {
  const std::string* pattern = value.if_string();
  if (pattern == nullptr) refuse(where, "it must be a regular expression, as a string");
  if (pattern->size() > kMostPatternBytes)
    refuse(where, fmt::format("it has {} bytes and at most {} are taken; make it shorter",
                              pattern->size(), kMostPatternBytes));
  return {.name = "regex " + *pattern, .schema = text_of_pattern(*pattern, where)};
}

ResponseFormat held_to_choices(const Json& value, const std::string& where) {
  const Json::Array* list = value.if_array();
  if (list == nullptr || list->empty() || list->size() > kMostChoices)
    refuse(where, fmt::format("it must be a list of 1 to {} strings", kMostChoices));
  std::vector<std::string> texts;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string* text = (*list)[i].if_string();
    const std::string place = fmt::format("{}[{}]", where, i);
    if (text == nullptr) refuse(place, "it must be a string");
    if (text->size() > kMostChoiceBytes)
      refuse(place, fmt::format("it has {} bytes and at most {} are taken; make it shorter",
                                text->size(), kMostChoiceBytes));
    texts.push_back(*text);
  }
  return {.name = "choice " + value.dump(), .schema = text_of_choices(std::move(texts))};
}

ResponseFormat held(Kind kind, const Json& value, const std::string& where) {
  switch (kind) {
    case Kind::json:
      return held_to_schema(value, where);
    case Kind::regex:
      return held_to_pattern(value, where);
    case Kind::choice:
      return held_to_choices(value, where);
    case Kind::object:
      break;
  }
  return held_to_schema(Json{{"type", "object"}}, where);
}

// Of an object, its `parts`; the one that is given.
std::unique_ptr<ResponseFormat> parse_parts(const Json& value, const std::string& where) {
  JsonFields fields(value, "request", where);
  const Field* given = nullptr;
  for (const Field& part : kParts) {
    if (!fields.has(part.key)) continue;
    if (part.kind == Kind::object && !fields.boolean(part.key)) continue;
    if (given != nullptr)
      fields.fail(part.key, fmt::format("there is {} already; give one of them", given->key));
    given = &part;
  }
  for (const std::string_view key : {"grammar", "structural_tag"})
    if (fields.has(key)) fields.fail(key, kNoGrammar);
  // Objects with properties have no others here in any case, unless the schema says so.
  static_cast<void>(fields.boolean_or("disable_additional_properties", false));
  static_cast<void>(fields.boolean_or("disable_fallback", false));
  for (const std::string_view key : {"disable_any_whitespace", "whitespace_pattern"})
    if (fields.has(key) && value[key] != Json(false))
      fields.fail(key, "spaces of JSON cannot be chosen; leave it out");
  fields.reject_others();
  if (given == nullptr)
    refuse(where, "give one of json, regex, choice and json_object (true) in it");
  return std::make_unique<ResponseFormat>(
      held(given->kind, value[given->key], fmt::format("{}.{}", where, given->key)));
}

// What a client sends for none.
bool is_none(const Json& value) { return value == Json("") || value == Json(false); }

}  // namespace

std::unique_ptr<ResponseFormat> parse_held_text(JsonFields& fields, const Json& body) {
  for (const std::string_view key :
       {"grammar", "ebnf", "guided_grammar", "structural_tag", "guided_whitespace_pattern"}) {
    if (!fields.has(key) || is_none(body[key])) continue;
    fields.fail(key, key == "guided_whitespace_pattern"
                         ? "spaces of JSON cannot be chosen; leave it out"
                         : kNoGrammar);
  }
  static_cast<void>(fields.has("guided_decoding_backend"));  // whichever: there is one way here
  std::unique_ptr<ResponseFormat> found;
  const auto take = [&](std::string_view key, auto&& parse) {
    if (!fields.has(key)) return;
    if (found != nullptr)
      fields.fail(key, fmt::format("there is {} already; give one of them", found->field));
    try {
      found = parse(std::string(key));
      found->field = key;
    } catch (const Error& e) {
      throw FieldError("request", message_of(e.what()), key);
    }
  };
  take("structured_outputs", [&](const std::string& key) { return parse_parts(body[key], key); });
  for (const Field& field : kFields)
    take(field.key, [&](const std::string& key) {
      return std::make_unique<ResponseFormat>(held(field.kind, body[key], key));
    });
  return found;
}

}  // namespace saturate::serve
