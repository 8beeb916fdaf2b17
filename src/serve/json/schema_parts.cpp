// SPDX-License-Identifier: Apache-2.0
#include "serve/json/schema_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "serve/json/number_pattern.h"

namespace saturate::serve {
namespace {

constexpr int kMostDepth = 64;            // of parts in parts
constexpr size_t kMostParts = 1024;       // of one schema
constexpr size_t kMostAlternatives = 64;  // of lists of alternatives beside one another
constexpr int kMostExcludedDepth = 8;
constexpr size_t kMostExcludedParts = 16;
constexpr size_t kStepsOfPair = 4;   // of two schemas that may exclude one another
constexpr size_t kStepsOfValue = 8;  // that is copied

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

bool is_false(const Json& s) { return s.if_bool() != nullptr && !*s.if_bool(); }
bool is_true(const Json& s) { return s.if_bool() != nullptr && *s.if_bool(); }

// Both, as a schema.
Json both(const Json& a, const Json& b) {
  if (is_true(a) || is_false(b)) return b;
  if (is_true(b) || is_false(a) || a == b) return a;
  return Json{{"allOf", Json::Array{a, b}}};
}

// What multiples of both are multiples of; none: not known.
std::optional<Json> common_multiple(const Json& a, const Json& b) {
  const auto one = number_multiple(a.number().value_or(0)),
             other = number_multiple(b.number().value_or(0));
  if (!one || !other) return std::nullopt;
  const int decimals = std::max(one->decimals, other->decimals);
  const auto scaled = [decimals](const NumberMultiple& m) {
    int64_t digits = m.digits;
    for (int i = m.decimals; i < decimals; ++i)
      digits = digits > kMostMultiple ? digits : digits * 10;
    return digits;
  };
  const int64_t first = scaled(*one), second = scaled(*other);
  if (std::max(first, second) > kMostMultiple) return std::nullopt;
  const int64_t both = std::lcm(first, second);
  if (decimals == 0) return Json(both);
  return Json(static_cast<double>(both) / std::pow(10.0, decimals));
}

size_t values_in(const Json& v) {
  size_t n = 1;
  if (const Json::Array* list = v.if_array())
    for (const Json& each : *list) n += values_in(each);
  if (const Json::Object* object = v.if_object())
    for (const auto& [key, each] : *object) n += values_in(each);
  return n;
}

Json without(const Json& object, std::initializer_list<std::string_view> keys) {
  Json out{Json::Object{}};
  for (const auto& [key, value] : *object.if_object())
    if (std::ranges::count(keys, key) == 0) out.add(key, value);
  return out;
}

// The values that a schema lists; none: it lists none.
std::optional<Json::Array> listed(const Json& s) {
  if (const Json* one = s.find("const")) return Json::Array{*one};
  if (const Json* list = s.find("enum"); list != nullptr && list->if_array() != nullptr)
    return *list->if_array();
  return std::nullopt;
}

// Types as bits; a whole number is one of its own.
constexpr unsigned kObject = 1, kArray = 2, kString = 4, kInteger = 8, kFraction = 16,
                   kBoolean = 32, kNull = 64, kAnyType = 127;

unsigned bits_of_name(std::string_view name) {
  return name == "object"    ? kObject
         : name == "array"   ? kArray
         : name == "string"  ? kString
         : name == "integer" ? kInteger
         : name == "number"  ? kInteger | kFraction
         : name == "boolean" ? kBoolean
         : name == "null"    ? kNull
                             : kAnyType;
}
unsigned type_bits(const Json& type) {
  if (const std::string* name = type.if_string()) return bits_of_name(*name);
  if (type.if_array() == nullptr) return kAnyType;
  unsigned bits = 0;
  for (const Json& each : *type.if_array())
    bits |= each.if_string() != nullptr ? bits_of_name(*each.if_string()) : kAnyType;
  return bits;
}
unsigned type_of_value(const Json& v) {
  if (v.if_object() != nullptr) return kObject;
  if (v.if_array() != nullptr) return kArray;
  if (v.if_string() != nullptr) return kString;
  if (v.if_bool() != nullptr) return kBoolean;
  if (v.is_null()) return kNull;
  return v.if_int() != nullptr || std::trunc(*v.number()) == *v.number() ? kInteger : kFraction;
}
Json type_names(unsigned bits) {
  Json::Array names;
  for (const auto& [bit, name] : {std::pair{kObject, "object"},
                                  {kArray, "array"},
                                  {kString, "string"},
                                  {kBoolean, "boolean"},
                                  {kNull, "null"}})
    if ((bits & bit) != 0) names.emplace_back(name);
  if ((bits & kFraction) != 0)
    names.emplace_back("number");
  else if ((bits & kInteger) != 0)
    names.emplace_back("integer");
  return names.size() == 1 ? names[0] : Json(names);
}

// Where one speaks of the first elements and the other of all.
void refuse_lists(const Json& a, const Json& b, const std::string& where) {
  const auto has_any = [](const Json& s) {
    return s.find("items") != nullptr || s.find("prefixItems") != nullptr ||
           s.find("additionalItems") != nullptr;
  };
  const auto has_first = [](const Json& s) {
    return s.find("prefixItems") != nullptr || s["items"].if_array() != nullptr;
  };
  if (has_any(a) && has_any(b) && (has_first(a) || has_first(b)))
    refuse(
        where + ".items",
        "two parts of the schema say what elements are, one of them of the first ones; say it in "
        "one part");
}

bool has_reference(const Json& v) {
  if (const Json::Array* list = v.if_array()) return std::ranges::any_of(*list, has_reference);
  if (v.if_object() == nullptr) return false;
  return std::ranges::any_of(*v.if_object(), [](const Json::Member& m) {
    return m.key == "$ref" || has_reference(m.value);
  });
}

}  // namespace

bool only_describes(std::string_view keyword) {
  constexpr std::array<std::string_view, 13> kWords = {
      "title",    "description", "default",  "examples",  "example", "$schema",    "$id",
      "$comment", "deprecated",  "readOnly", "writeOnly", "$defs",   "definitions"};
  return std::ranges::count(kWords, keyword) > 0;
}

const Json& SchemaParts::resolve(const Json& reference, const std::string& where) const {
  constexpr std::string_view kForm =
      "a reference must be \"#\" or \"#/$defs/NAME\", into this schema";
  const std::string* text = reference.if_string();
  if (text == nullptr || !text->starts_with('#')) refuse(where, kForm);
  const Json* at = &whole_;
  for (std::string_view rest = std::string_view(*text).substr(1); !rest.empty();) {
    if (rest[0] != '/') refuse(where, kForm);
    const size_t end = std::min(rest.find('/', 1), rest.size());
    std::string part(rest.substr(1, end - 1));
    rest.remove_prefix(end);
    for (const auto& [code, character] : {std::pair{"~1", "/"}, std::pair{"~0", "~"}})
      for (size_t i = part.find(code); i != part.npos; i = part.find(code, i + 1))
        part.replace(i, 2, character);
    size_t index = 0;
    const char* last = part.data() + part.size();
    if (at->if_array() != nullptr && std::from_chars(part.data(), last, index).ptr == last)
      at = index < at->size() ? &(*at)[index] : nullptr;
    else
      at = at->find(part);
    if (at == nullptr) refuse(where, fmt::format("there is no {} in the schema", *text));
  }
  return *at;
}

void SchemaParts::require_no_base(const Json& schema, const std::string& where) const {
  if (&schema == &whole_ || schema["$id"].if_string() == nullptr || !has_reference(schema)) return;
  refuse(where + ".$id",
         "references below it lead into this part of the schema, which is not supported; leave the "
         "$id out");
}

void SchemaParts::work(size_t steps, const std::string& where) {
  if (steps > budget_.steps)
    refuse(where, "its parts are too many together; make the schema smaller");
  budget_.steps -= steps;
}

bool SchemaParts::has_parts(const Json& schema) {
  const Json::Object* object = schema.if_object();
  if (object == nullptr) return false;
  // A reference or a list of alternatives that stands alone says by itself what a value is.
  size_t alone = 0, others = 0;
  for (const auto& [key, value] : *object) {
    if (key == "allOf" || key == "unevaluatedProperties") return true;
    if (key == "$ref" || key == "anyOf" || key == "oneOf")
      ++alone;
    else if (!only_describes(key))
      ++others;
  }
  return alone > 1 || (alone == 1 && others > 0);
}

void SchemaParts::flatten(const Json& schema, const std::string& where, int depth,
                          std::vector<const Json*>& parts) {
  if (depth > kMostDepth) refuse(where, "its parts lead too deep, or back to it; make it flatter");
  if (parts.size() >= kMostParts) refuse(where, "it has too many parts; make it smaller");
  if (is_true(schema)) return;
  if (schema.if_object() == nullptr && !is_false(schema))
    refuse(where, "a schema must be an object or true");
  work(1, where);
  require_no_base(schema, where);
  // What it builds on comes first, and so do its members.
  if (const Json* to = schema.find("$ref"))
    flatten(resolve(*to, where + ".$ref"), where + ".$ref", depth + 1, parts);
  if (const Json* all = schema.find("allOf")) {
    if (all->if_array() == nullptr || all->size() == 0)
      refuse(where + ".allOf", "give a list of at least one schema");
    for (size_t i = 0; i < all->size(); ++i)
      flatten((*all)[i], fmt::format("{}.allOf[{}]", where, i), depth + 1, parts);
  }
  parts.push_back(&schema);
}

Json SchemaParts::joined(const Json& schema, const std::string& where) {
  std::vector<const Json*> parts;
  flatten(schema, where, 0, parts);
  Json base{Json::Object{}};
  std::vector<const Json::Array*> lists;
  bool closed = false;
  for (const Json* part : parts) {
    if (is_false(*part)) return Json(false);
    for (const char* word : {"anyOf", "oneOf"})
      if (part->find(word) != nullptr) lists.push_back(&alternatives(*part, word, where));
    if (const Json* rest = part->find("unevaluatedProperties");
        rest != nullptr && !is_true(*rest)) {
      // Of a part it would speak of that part alone.
      if (part != &schema || !is_false(*rest))
        refuse(where + ".unevaluatedProperties", "it is taken as false, of the outermost schema");
      closed = true;
    }
    work(kStepsOfValue * values_in(*part), where);
    if (!join(base, *part, where)) return Json(false);
  }
  if (closed && lists.empty() && base.find("additionalProperties") == nullptr)
    base["additionalProperties"] = false;
  if (lists.empty()) return base;
  // Each alternative of one list with each of the others.
  std::vector<Json::Array> chosen = {{}};
  if (base.size() > 0) chosen[0].push_back(base);
  for (const Json::Array* list : lists) {
    std::vector<Json::Array> more;
    for (const Json::Array& begun : chosen)
      for (const Json& each : *list) {
        if (more.size() >= kMostAlternatives && lists.size() > 1)
          refuse(where, "its lists of alternatives have more than 64 together; make them smaller");
        work(kStepsOfValue * (values_in(base) + values_in(each)), where);
        more.push_back(begun);
        more.back().push_back(each);
      }
    chosen = std::move(more);
  }
  Json::Array all;
  for (Json::Array& one : chosen) {
    Json together{{"allOf", Json(std::move(one))}};
    if (closed) together["unevaluatedProperties"] = false;
    all.push_back(std::move(together));
  }
  return Json{{"anyOf", Json(std::move(all))}};
}

// Adds what `from` says; whether a value may still meet both.
bool SchemaParts::join(Json& to, const Json& from, const std::string& where) {
  join_members(to, from, where);
  refuse_lists(to, from, where);
  for (const auto& [key, value] : *from.if_object()) {
    constexpr std::array<std::string_view, 9> kElsewhere = {"$ref",
                                                            "allOf",
                                                            "anyOf",
                                                            "oneOf",
                                                            "unevaluatedProperties",
                                                            "properties",
                                                            "patternProperties",
                                                            "additionalProperties",
                                                            "propertyNames"};
    if (only_describes(key) || std::ranges::count(kElsewhere, key) > 0) continue;
    if (!join_keyword(to, key, value, where)) return false;
  }
  return true;
}

bool SchemaParts::join_keyword(Json& to, const std::string& key, const Json& value,
                               const std::string& where) {
  const Json* there = to.find(key);
  if (key == "enum" && (value.if_array() == nullptr || value.size() == 0))
    refuse(where + ".enum", "give a list of at least one value");
  if (key == "const" || key == "enum") {
    const auto before = listed(to);
    if (!before) {
      to[key] = value;
      return true;
    }
    Json::Array common;
    const Json::Array now = listed(Json{{key, value}}).value_or(Json::Array{});
    for (const Json& v : *before)
      if (std::ranges::count(now, v) > 0) common.push_back(v);
    to = without(to, {"const", "enum"});
    to["enum"] = common;
    return !common.empty();
  }
  if (there == nullptr || *there == value) {
    to[key] = value;
    return true;
  }
  const std::optional<double> a = there->number(), b = value.number();
  const bool least = key == "minimum" || key == "exclusiveMinimum" || key.starts_with("min"),
             most = key == "maximum" || key == "exclusiveMaximum" || key.starts_with("max");
  if ((least || most) && a && b) {
    if (least ? *b > *a : *b < *a) to[key] = value;
    return true;
  }
  if (key == "type") {
    for (const Json* one : {there, &value})
      if (type_bits(*one) == kAnyType && one->size() < 6)
        refuse(where + ".type", "it is no name of a type, or list of them");
    const unsigned types = type_bits(*there) & type_bits(value);
    to[key] = type_names(types);
    return types != 0;
  }
  if (key == "required" && there->if_array() != nullptr && value.if_array() != nullptr) {
    Json::Array names = *there->if_array();
    for (const Json& name : *value.if_array())
      if (std::ranges::count(names, name) == 0) names.push_back(name);
    to[key] = names;
    return true;
  }
  if (key == "items" && to.find("prefixItems") == nullptr && there->if_array() == nullptr &&
      value.if_array() == nullptr) {
    to[key] = both(*there, value);
    return true;
  }
  if (key == "multipleOf") {
    if (const std::optional<Json> both = common_multiple(*there, value)) {
      to[key] = *both;
      return true;
    }
  }
  refuse(where + "." + key,
         "two parts of the schema give it, and what they say together is not known here; leave one "
         "of them out");
}

// properties and what else says which members there are.
void SchemaParts::join_members(Json& to, const Json& from, const std::string& where) {
  // It speaks of all names, whichever part gives them.
  if (const Json* names = from.find("propertyNames"))
    to["propertyNames"] =
        to.find("propertyNames") != nullptr ? both(to["propertyNames"], *names) : *names;
  constexpr std::array<const char*, 3> kWords = {"properties", "additionalProperties",
                                                 "patternProperties"};
  const auto has = [&](const Json& s, const char* word) { return s.find(word) != nullptr; };
  const bool old = std::ranges::any_of(kWords, [&](const char* w) { return has(to, w); });
  const bool fresh = std::ranges::any_of(kWords, [&](const char* w) { return has(from, w); });
  if (!fresh) return;
  if (!old) {
    for (const char* word : kWords)
      if (const Json* value = from.find(word)) to[word] = *value;
    return;
  }
  if (has(to, "patternProperties") || has(from, "patternProperties"))
    refuse(where + ".patternProperties",
           "it cannot be joined with members that other parts of the schema give; leave one of "
           "them out");
  const Json nothing{Json::Object{}};
  const Json &a = has(to, "properties") ? to["properties"] : nothing,
             &b = has(from, "properties") ? from["properties"] : nothing;
  if (a.if_object() == nullptr || b.if_object() == nullptr)
    refuse(where + ".properties", "it must be an object of schemas");
  const Json *rest_a = to.find("additionalProperties"), *rest_b = from.find("additionalProperties");
  Json all{Json::Object{}};
  // What the other part says of a name that it does not have.
  const auto add = [&](const std::string& name, const Json& schema, const Json* other) {
    Json one = other != nullptr ? both(schema, *other) : schema;
    if (!is_false(one) || is_false(schema)) all.add(name, std::move(one));
  };
  for (const auto& [name, schema] : *a.if_object()) {
    const Json* same = b.find(name);
    add(name, schema, same != nullptr ? same : rest_b);
  }
  for (const auto& [name, schema] : *b.if_object())
    if (a.find(name) == nullptr) add(name, schema, rest_a);
  std::optional<Json> rest;
  if (rest_a != nullptr || rest_b != nullptr)
    rest = rest_a == nullptr ? *rest_b : rest_b == nullptr ? *rest_a : both(*rest_a, *rest_b);
  work(kStepsOfValue * values_in(all), where);
  if (has(to, "properties") || has(from, "properties")) to["properties"] = std::move(all);
  if (rest) to["additionalProperties"] = std::move(*rest);
}

const Json::Array& SchemaParts::alternatives(const Json& schema, const char* word,
                                             const std::string& where) {
  const Json::Array* list = schema[word].if_array();
  const std::string at = where + "." + word;
  if (list == nullptr || list->empty()) refuse(at, "give a list of at least one schema");
  if (std::string_view(word) == "anyOf") return *list;
  for (size_t i = 0; i < list->size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const bool apart = excludes((*list)[j], (*list)[i]);
      work(kStepsOfPair, at);
      if (!apart)
        refuse(at, fmt::format("[{}] and [{}] may both hold of one value, as far as is known here; "
                               "write anyOf, or give them different types or a required property "
                               "with a const of its own in each",
                               j, i));
    }
  return *list;
}

unsigned SchemaParts::types_of(const Json& schema) const {
  unsigned types = kAnyType;
  if (const Json* type = schema.find("type")) types = type_bits(*type);
  if (const auto values = listed(schema)) {
    unsigned of_values = 0;
    for (const Json& v : *values) of_values |= type_of_value(v);
    types &= of_values;
  }
  return types;
}

bool SchemaParts::excludes(const Json& a, const Json& b) { return excludes(a, b, 0); }

// Schemas that a value of `schema` meets all: references and allOf lead to them. Not all, where there are many.
void SchemaParts::parts_of(const Json& schema, int depth, std::vector<const Json*>& parts) const {
  if (depth > kMostExcludedDepth || parts.size() >= kMostExcludedParts) return;
  if (const Json* to = schema.find("$ref")) {
    // What stands beside it says nothing in draft 7.
    const std::string* text = to->if_string();
    if (text != nullptr && text->starts_with('#')) parts_of(resolve(*to, "$ref"), depth + 1, parts);
    return;
  }
  parts.push_back(&schema);
  if (const Json* all = schema.find("allOf"); all != nullptr && all->if_array() != nullptr)
    for (const Json& each : *all->if_array()) parts_of(each, depth + 1, parts);
}

bool SchemaParts::excludes(const Json& a, const Json& b, int depth) {
  if (is_false(a) || is_false(b)) return true;
  if (is_true(a) || is_true(b) || depth > kMostExcludedDepth) return false;
  std::array<std::vector<const Json*>, 2> parts;
  parts_of(a, 0, parts[0]);
  parts_of(b, 0, parts[1]);
  const size_t steps = kStepsOfPair * (parts[0].size() + parts[1].size());
  if (steps > budget_.steps) return false;
  budget_.steps -= steps;
  unsigned types = kAnyType;
  for (const auto& side : parts)
    for (const Json* part : side) {
      if (is_false(*part)) return true;
      types &= types_of(*part);
    }
  if (types == 0) return true;
  // One of its alternatives a value meets too.
  for (size_t side = 0; side < 2; ++side)
    for (const Json* part : parts[side])
      for (const char* word : {"anyOf", "oneOf"}) {
        const Json::Array* any = (*part)[word].if_array();
        if (any != nullptr && !any->empty() && std::ranges::all_of(*any, [&](const Json& each) {
              return excludes(each, side == 0 ? b : a, depth + 1);
            }))
          return true;
      }
  std::vector<std::string> required;
  for (const auto& side : parts)
    for (const Json* part : side)
      if (const Json::Array* names = (*part)["required"].if_array())
        for (const Json& name : *names)
          if (name.if_string() != nullptr) required.push_back(*name.if_string());
  for (const Json* x : parts[0])
    for (const Json* y : parts[1])
      if (differ(*x, *y, types, required, depth)) return true;
  return false;
}

// Whether two parts say it: by values that they list, or of a property that must be there.
bool SchemaParts::differ(const Json& x, const Json& y, unsigned types,
                         const std::vector<std::string>& required, int depth) {
  if (const auto u = listed(x), v = listed(y); u && v) {
    // Objects and lists may be equal in another order or spelling.
    return (types & (kObject | kArray)) == 0 && u->size() * v->size() <= 65536 &&
           std::ranges::none_of(*u, [&](const Json& w) { return std::ranges::count(*v, w) > 0; });
  }
  if (types != kObject) return false;
  const auto of = [](const Json& s, const std::string& name) -> Json {
    if (const Json* own = s["properties"].find(name)) return *own;
    return Json(!(s.find("additionalProperties") != nullptr &&
                  is_false(s["additionalProperties"]) && s.find("patternProperties") == nullptr));
  };
  return std::ranges::any_of(required, [&](const std::string& name) {
    return excludes(of(x, name), of(y, name), depth + 1);
  });
}

}  // namespace saturate::serve
