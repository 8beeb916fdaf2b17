// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"

namespace saturate {

JsonFields::JsonFields(const Json& object, std::string op, std::string where)
    : object_(object), op_(std::move(op)), where_(std::move(where)) {
  if (object.if_object() == nullptr) {
    throw Error(Errc::invalid_argument, op_, where_ + ": an object {...} is needed");
  }
}

void JsonFields::fail(std::string_view key, std::string_view what) const {
  const Json* value = object_.find(key);
  std::string given = value == nullptr ? "missing" : value->dump();
  if (given.size() > 80) given = given.substr(0, 77) + "...";
  throw FieldError(op_, fmt::format("{}: {} is {}: {}", where_, key, given, what), key);
}

bool JsonFields::has(std::string_view key) {
  asked_.emplace_back(key);
  const Json* value = object_.find(key);
  return value != nullptr && !value->is_null();
}

const Json& JsonFields::at(std::string_view key) {
  asked_.emplace_back(key);
  const Json* value = object_.find(key);
  if (value == nullptr) fail(key, "it must be given");
  return *value;
}

int64_t JsonFields::integer(std::string_view key) {
  const int64_t* v = at(key).if_int();
  if (v == nullptr) fail(key, "an integer is needed");
  return *v;
}

double JsonFields::number(std::string_view key) {
  const std::optional<double> v = at(key).number();
  if (!v) fail(key, "a number is needed");
  return *v;
}

bool JsonFields::boolean(std::string_view key) {
  const bool* v = at(key).if_bool();
  if (v == nullptr) fail(key, "true or false is needed");
  return *v;
}

const std::string& JsonFields::text(std::string_view key) {
  const std::string* v = at(key).if_string();
  if (v == nullptr) fail(key, "a text is needed");
  return *v;
}

const Json::Array& JsonFields::list(std::string_view key) {
  const Json::Array* v = at(key).if_array();
  if (v == nullptr) fail(key, "a list [...] is needed");
  return *v;
}

int64_t JsonFields::integer_or(std::string_view key, int64_t fallback) {
  return has(key) ? integer(key) : fallback;
}
double JsonFields::number_or(std::string_view key, double fallback) {
  return has(key) ? number(key) : fallback;
}
bool JsonFields::boolean_or(std::string_view key, bool fallback) {
  return has(key) ? boolean(key) : fallback;
}
std::string JsonFields::text_or(std::string_view key, const std::string& fallback) {
  return has(key) ? text(key) : fallback;
}

size_t JsonFields::choice(std::string_view key, std::span<const std::string_view> names) {
  const std::string& given = text(key);
  const auto at_name = std::find(names.begin(), names.end(), given);
  if (at_name == names.end())
    fail(key, fmt::format("it must be one of {}", fmt::join(names, ", ")));
  return static_cast<size_t>(at_name - names.begin());
}

void JsonFields::reject_others() const {
  for (const Json::Member& m : *object_.if_object()) {
    if (std::find(asked_.begin(), asked_.end(), m.key) == asked_.end()) {
      fail(m.key, "no such field is known here");
    }
  }
}

}  // namespace saturate
