// SPDX-License-Identifier: Apache-2.0
#include "serve/json/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "base/error.h"

namespace saturate::serve {
namespace {

using Node = JsonSchema::Node;
using Kind = Node::Kind;

constexpr size_t kMostNodes = 4096;
constexpr size_t kMostProperties = 1024, kMostValues = 4096;  // of one object, of one enum
constexpr int kMostDepth = 256;  // of schemas in schemas, by references too: what a stack holds
constexpr size_t kMostStates = 16384;                  // of all patterns, half a kilobyte each
constexpr int64_t kMostInteger = 999'999'999'999'999;  // of as many digits as a number has
constexpr int32_t kEndless = INT32_MAX / 2;
constexpr int64_t kMostCount = int64_t{1} << 20;  // of minItems and its kin

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
}

// What says nothing of values.
bool only_describes(std::string_view keyword) {
  constexpr std::array<std::string_view, 12> kWords = {
      "title", "description", "default",    "examples", "example",  "$schema",
      "$id",   "$comment",    "deprecated", "readOnly", "writeOnly"};
  return std::ranges::count(kWords, keyword) > 0 || keyword == "$defs" || keyword == "definitions";
}

class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

class Compiler {
 public:
  Compiler(const Json& schema, std::string where, PatternBudget* budget)
      : whole_(schema), where_(std::move(where)), budget_(budget != nullptr ? *budget : own_) {}

  JsonSchema compiled() {
    out_.root = compile(whole_, where_);
    refuse_loops();
    find_levels();
    const int32_t levels = out_.nodes[static_cast<size_t>(out_.root)].levels;
    if (levels > kMostJsonLevels) {
      refuse(where_, levels >= kEndless
                         ? "no value that ends meets it, since each holds another one; "
                           "make a property optional or allow null"
                         : "its values nest deeper than 64 levels; make it flatter");
    }
    return std::move(out_);
  }

 private:
  int32_t add(Node node) {
    if (out_.nodes.size() >= kMostNodes)
      refuse(where_, "it has more than 4096 parts; make it smaller");
    out_.nodes.push_back(std::move(node));
    return static_cast<int32_t>(out_.nodes.size() - 1);
  }
  int32_t literal(std::vector<std::string> texts) {
    std::ranges::sort(texts);
    const auto same = std::ranges::unique(texts);
    texts.erase(same.begin(), same.end());
    return add({.kind = Kind::literal, .texts = std::move(texts)});
  }

  // Any JSON value.
  int32_t any() {
    if (any_ >= 0) return any_;
    any_ = add({});
    const int32_t object = add({.kind = Kind::object, .rest = any_});
    const int32_t array = add({.kind = Kind::array, .items = any_});
    const int32_t string = add({.kind = Kind::string}), number = add({.kind = Kind::number});
    const int32_t words = literal({"true", "false", "null"});
    out_.nodes[static_cast<size_t>(any_)].alternatives = {object, array, string, number, words};
    return any_;
  }

  int32_t compile(const Json& s, const std::string& where) {
    if (const bool* all = s.if_bool()) {
      if (!*all) refuse(where, "false allows no value; leave it out");
      return any();
    }
    if (s.if_object() == nullptr) refuse(where, "a schema must be an object or true");
    if (const auto known = known_.find(&s); known != known_.end()) return known->second;
    const Deeper deeper(depth_);
    if (depth_ > kMostDepth) refuse(where, "references lead too deep; make the schema flatter");
    for (const char* word : {"$ref", "allOf", "oneOf"})
      if (s.find(word) != nullptr) return another(s, word, where);
    const int32_t node = add({});
    known_[&s] = node;  // before its parts, which may refer to it
    Node made = described(s, where);
    out_.nodes[static_cast<size_t>(node)] = std::move(made);
    return node;
  }

  // A schema that is another one: by reference, or as the only one of a list.
  int32_t another(const Json& s, const char* word, const std::string& where) {
    allow(s, {word}, where);
    if (!open_.insert(&s).second) refuse(where, "it refers to itself and to nothing else");
    const std::string at = where + "." + word;
    const Json* target = nullptr;
    if (std::string_view(word) == "$ref") {
      target = &resolve(s[word], at);
    } else {
      if (s[word].size() != 1 || s[word].if_array() == nullptr)
        refuse(at,
               "only a list of one schema is supported; write anyOf, or one schema with the "
               "keywords of all");
      target = &s[word][0];
    }
    const int32_t node = compile(*target, at);
    open_.erase(&s);
    return node;
  }

  const Json& resolve(const Json& reference, const std::string& where) const {
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

  // Errors for a keyword that is none of `words`.
  void allow(const Json& s, std::initializer_list<std::string_view> words,
             const std::string& where) {
    for (const auto& [key, value] : *s.if_object()) {
      if (only_describes(key) || std::ranges::count(words, key) > 0) continue;
      std::string_view why = "it is not supported; leave it out and check the value afterwards";
      if (known_keyword(key))
        why =
            "it cannot stand beside the other keywords here; leave it out, or give each its own "
            "schema "
            "in anyOf";
      refuse(where + "." + key, why);
    }
  }
  static bool known_keyword(std::string_view key) {
    constexpr std::array<std::string_view, 21> kWords = {"type",
                                                         "properties",
                                                         "required",
                                                         "additionalProperties",
                                                         "items",
                                                         "minItems",
                                                         "maxItems",
                                                         "minLength",
                                                         "maxLength",
                                                         "enum",
                                                         "const",
                                                         "anyOf",
                                                         "allOf",
                                                         "oneOf",
                                                         "$ref",
                                                         "pattern",
                                                         "format",
                                                         "minimum",
                                                         "maximum",
                                                         "exclusiveMinimum",
                                                         "exclusiveMaximum"};
    return std::ranges::count(kWords, key) > 0;
  }

  Node described(const Json& s, const std::string& where) {
    if (s.find("anyOf") != nullptr) {
      allow(s, {"anyOf"}, where);
      if (s["anyOf"].size() == 0 || s["anyOf"].if_array() == nullptr)
        refuse(where + ".anyOf", "give a list of at least one schema");
      Node n;
      for (size_t i = 0; i < s["anyOf"].size(); ++i)
        n.alternatives.push_back(compile(s["anyOf"][i], fmt::format("{}.anyOf[{}]", where, i)));
      return n;
    }
    if (s.find("enum") != nullptr || s.find("const") != nullptr) return values(s, where);
    const std::vector<std::string> types = types_of(s, where);
    std::vector<Node> all;
    for (const std::string& type : types) all.push_back(typed(s, type, types, where));
    if (all.size() == 1) return std::move(all[0]);
    Node n;
    for (Node& each : all) n.alternatives.push_back(add(std::move(each)));
    return n;
  }

  // The types that it names, or those that its other keywords tell.
  static std::vector<std::string> types_of(const Json& s, const std::string& where) {
    constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                        "integer", "boolean", "null"};
    std::vector<std::string> types;
    if (const Json* type = s.find("type")) {
      const Json::Array one = {*type};
      for (const Json& each : type->if_array() != nullptr ? *type->if_array() : one) {
        const std::string* name = each.if_string();
        if (name == nullptr || std::ranges::count(kTypes, *name) == 0)
          refuse(where + ".type",
                 "it must be object, array, string, number, integer, boolean or null, or a list of "
                 "these");
        types.push_back(*name);
      }
      if (types.empty()) refuse(where + ".type", "the list is empty; name a type");
      return types;
    }
    const auto any_of = [&](std::initializer_list<const char*> words) {
      return std::ranges::any_of(words, [&](const char* w) { return s.find(w) != nullptr; });
    };
    if (any_of({"properties", "required", "additionalProperties"})) types.emplace_back("object");
    if (any_of({"items", "minItems", "maxItems"})) types.emplace_back("array");
    if (any_of({"minLength", "maxLength", "pattern", "format"})) types.emplace_back("string");
    if (any_of({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}))
      types.emplace_back("number");
    if (types.size() > 1)
      refuse(where, "it has keywords of several types and no \"type\"; name it");
    if (types.empty()) types.emplace_back();
    return types;
  }

  Node typed(const Json& s, const std::string& type, const std::vector<std::string>& types,
             const std::string& where) {
    // Of several types each has its keywords; none may be of no type.
    const auto has = [&](std::string_view t) { return std::ranges::count(types, t) > 0; };
    for (const auto& [key, value] : *s.if_object()) {
      const bool of_object =
          key == "properties" || key == "required" || key == "additionalProperties";
      const bool of_array = key == "items" || key == "minItems" || key == "maxItems";
      const bool of_string =
          key == "minLength" || key == "maxLength" || key == "pattern" || key == "format";
      const bool of_number = key == "minimum" || key == "maximum" || key == "exclusiveMinimum" ||
                             key == "exclusiveMaximum";
      if ((of_object && !has("object")) || (of_array && !has("array")) ||
          (of_string && !has("string")) || (of_number && !has("number") && !has("integer")))
        refuse(where + "." + key, "it says nothing of the type here; leave it out");
      if (of_number && has("number"))
        refuse(
            where + "." + key,
            "it is supported for integers only; make the type integer, or leave it out and check "
            "the value afterwards");
      if (!of_object && !of_array && !of_string && !of_number)
        allow(Json{{key, nullptr}}, {"type"}, where);
    }
    if (type == "object") return object(s, where);
    if (type == "array") {
      Node n{.kind = Kind::array};
      counts(s, "minItems", "maxItems", n, where);
      const Json* items = s.find("items");
      n.items = items != nullptr ? compile(*items, where + ".items") : any();
      return n;
    }
    if (type == "string") {
      Node n{.kind = Kind::string};
      counts(s, "minLength", "maxLength", n, where);
      n.pattern = text_pattern(s, n, where);
      return n;
    }
    if (type == "number") return {.kind = Kind::number};
    if (type == "integer") return {.kind = Kind::integer, .pattern = bounds(s, where)};
    if (type == "boolean") return {.kind = Kind::literal, .texts = {"false", "true"}};
    if (type == "null") return {.kind = Kind::literal, .texts = {"null"}};
    return {.alternatives = {any()}};
  }

  Node object(const Json& s, const std::string& where) {
    Node n{.kind = Kind::object};
    std::set<std::string> required;
    if (const Json* names = s.find("required")) {
      if (names->if_array() == nullptr) refuse(where + ".required", "it must be a list of names");
      for (const Json& name : *names->if_array()) {
        if (name.if_string() == nullptr) refuse(where + ".required", "it must be a list of names");
        required.insert(*name.if_string());
      }
    }
    if (const Json* properties = s.find("properties")) {
      if (properties->if_object() == nullptr)
        refuse(where + ".properties", "it must be an object of schemas");
      if (properties->size() > kMostProperties)
        refuse(where + ".properties", "it has more than 1024; make the object smaller");
      for (const auto& [name, schema] : *properties->if_object()) {
        const int32_t node = compile(schema, where + ".properties." + name);
        n.properties.push_back({Json(name).dump().substr(1), node, required.erase(name) > 0});
      }
    }
    if (!required.empty())
      refuse(where + ".required",
             fmt::format("it names {}, which properties does not have; add it there",
                         *required.begin()));
    const Json* more = s.find("additionalProperties");
    const bool none = more != nullptr ? more->if_bool() != nullptr && !*more->if_bool()
                                      : s.find("properties") != nullptr;
    if (more != nullptr && !none)
      n.rest = compile(*more, where + ".additionalProperties");
    else if (!none)
      n.rest = any();
    return n;
  }

  void counts(const Json& s, const char* least, const char* most, Node& n,
              const std::string& where) {
    const auto count = [&](const char* key, int32_t fallback) {
      const Json* value = s.find(key);
      if (value == nullptr) return fallback;
      const int64_t* number = value->if_int();
      if (number == nullptr || *number < 0 || *number > kMostCount)
        refuse(where + "." + key, "it must be a whole number in 0 .. 1048576");
      return static_cast<int32_t>(*number);
    };
    n.least = count(least, 0);
    n.most = count(most, -1);
    if (n.most >= 0 && n.least > n.most)
      refuse(where + "." + least, fmt::format("it is above {}; no value has both", most));
  }

  // The number of what `pattern` or `format` says, -1 without them.
  int32_t text_pattern(const Json& s, const Node& n, const std::string& where) {
    const Json *pattern = s.find("pattern"), *format = s.find("format");
    if (pattern != nullptr && format != nullptr)
      refuse(where + ".format", "it cannot stand beside pattern; leave one of them out");
    if (pattern != nullptr) {
      if (pattern->if_string() == nullptr) refuse(where + ".pattern", "it must be a text");
      return held_to(*pattern->if_string(), n.least, n.most, where + ".pattern");
    }
    if (format == nullptr) return -1;
    const std::string text =
        format->if_string() != nullptr ? format_pattern(*format->if_string()) : "";
    if (text.empty())
      refuse(where + ".format",
             "it is not supported (date, time, date-time, uuid, ipv4 and email are); leave it out "
             "and check the value afterwards");
    return held_to(text, n.least, n.most, where + ".format");
  }
  // Equal ones are compiled once: a schema has many dates.
  int32_t held_to(const std::string& pattern, int32_t least, int32_t most,
                  const std::string& where) {
    const auto [at, fresh] = patterns_.try_emplace({pattern, least, most}, -1);
    if (!fresh) return at->second;
    Dfa dfa = compile_pattern(pattern, where, least, most, &budget_);
    if ((states_ += dfa.states.size()) > kMostStates)
      refuse(where, "the patterns of the schema have more than 16384 states; make them smaller");
    out_.patterns.push_back(std::move(dfa));
    return at->second = static_cast<int32_t>(out_.patterns.size() - 1);
  }

  // The number of the pattern of integers within the bounds that it gives, -1 without any.
  int32_t bounds(const Json& s, const std::string& where) {
    int64_t least = -kMostInteger, most = kMostInteger;
    std::string last;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const Json* value = s.find(key);
      if (value == nullptr) continue;
      last = where + "." + key;
      if (!value->number()) refuse(last, "it must be a number");
      const bool lower = std::string_view(key).ends_with("inimum"), exclusive = key[0] == 'e';
      // Beyond what is written anyway a bound is cut, so that it and its neighbours are exact.
      const double bound = std::clamp(*value->number(), -2.0 * kMostInteger, 2.0 * kMostInteger);
      const double whole = lower ? std::ceil(bound) : std::floor(bound);
      const int64_t step = exclusive && whole == bound ? 1 : 0;
      if (lower)
        least = std::max(least, static_cast<int64_t>(whole) + step);
      else
        most = std::min(most, static_cast<int64_t>(whole) - step);
    }
    if (last.empty()) return -1;
    if (least > most) refuse(last, "no integer of at most 15 digits lies within the bounds");
    return held_to(integer_pattern(least, most), 0, -1, last);
  }

  // enum and const: each value as it is written.
  Node values(const Json& s, const std::string& where) {
    allow(s, {"enum", "const", "type"}, where);
    if (s.find("enum") != nullptr && s.find("const") != nullptr)
      refuse(where + ".const", "it cannot stand beside enum; leave one of them out");
    const Json::Array one = {s["const"]};
    const Json::Array* list = s.find("enum") != nullptr ? s["enum"].if_array() : &one;
    if (list == nullptr || list->empty())
      refuse(where + ".enum", "give a list of at least one value");
    if (list->size() > kMostValues)
      refuse(where + ".enum", "it has more than 4096 values; allow any string instead");
    std::vector<std::string> types;
    if (s.find("type") != nullptr) types = types_of(s, where);
    Node n{.kind = Kind::literal};
    for (const Json& value : *list)
      if (types.empty() || std::ranges::any_of(types, [&](auto& t) { return is_of(value, t); }))
        n.texts.push_back(value.dump());
    if (n.texts.empty())
      refuse(where, "no value that it lists is of its type; correct one of them");
    std::ranges::sort(n.texts);
    const auto same = std::ranges::unique(n.texts);
    n.texts.erase(same.begin(), same.end());
    return n;
  }
  static bool is_of(const Json& v, const std::string& type) {
    if (type == "object") return v.if_object() != nullptr;
    if (type == "array") return v.if_array() != nullptr;
    if (type == "string") return v.if_string() != nullptr;
    if (type == "boolean") return v.if_bool() != nullptr;
    if (type == "null") return v.is_null();
    if (type == "integer") return v.if_int() != nullptr;
    return v.number().has_value();
  }

  // Alternatives that lead back to themselves before anything is written.
  void refuse_loops() const {
    enum : char { fresh, open, done };
    std::vector<char> seen(out_.nodes.size(), fresh);
    const auto visit = [&](const auto& self, int32_t i) -> void {
      const auto at = static_cast<size_t>(i);
      if (seen[at] == done) return;
      if (seen[at] == open) refuse(where_, "an anyOf refers to itself; take that alternative out");
      seen[at] = open;
      for (const int32_t next : out_.nodes[at].alternatives) self(self, next);
      seen[at] = done;
    };
    for (int32_t i = 0; i < std::ssize(out_.nodes); ++i) visit(visit, i);
  }

  void find_levels() {
    for (Node& n : out_.nodes)
      n.levels =
          n.kind == Kind::any_of || n.kind == Kind::object || n.kind == Kind::array ? kEndless : 0;
    const auto of = [&](int32_t i) { return out_.nodes[static_cast<size_t>(i)].levels; };
    for (bool changed = true; changed;) {
      changed = false;
      for (Node& n : out_.nodes) {
        int32_t levels = n.levels;
        if (n.kind == Kind::any_of) {
          for (const int32_t each : n.alternatives) levels = std::min(levels, of(each));
        } else if (n.kind == Kind::array) {
          levels = n.least > 0 ? std::min(kEndless, 1 + of(n.items)) : 1;
        } else if (n.kind == Kind::object) {
          levels = 1;
          for (const JsonSchema::Property& p : n.properties)
            if (p.required) levels = std::max(levels, std::min(kEndless, 1 + of(p.node)));
        }
        changed = changed || levels != n.levels;
        n.levels = levels;
      }
    }
  }

  const Json& whole_;
  const std::string where_;
  JsonSchema out_;
  int32_t any_ = -1;
  int depth_ = 0;
  size_t states_ = 0;
  PatternBudget own_;
  PatternBudget& budget_;
  std::map<std::tuple<std::string, int32_t, int32_t>, int32_t> patterns_;
  std::map<const Json*, int32_t> known_;
  std::set<const Json*> open_;
};

}  // namespace

JsonSchema compile_json_schema(const Json& schema, const std::string& where,
                               PatternBudget* budget) {
  return Compiler(schema, where, budget).compiled();
}

int32_t append_schema(JsonSchema& to, const JsonSchema& from) {
  const auto nodes = static_cast<int32_t>(to.nodes.size());
  const auto patterns = static_cast<int32_t>(to.patterns.size());
  to.patterns.insert(to.patterns.end(), from.patterns.begin(), from.patterns.end());
  for (Node n : from.nodes) {
    for (int32_t& each : n.alternatives) each += nodes;
    for (JsonSchema::Property& p : n.properties) p.node += nodes;
    if (n.rest >= 0) n.rest += nodes;
    if (n.items >= 0) n.items += nodes;
    if (n.pattern >= 0) n.pattern += patterns;
    to.nodes.push_back(std::move(n));
  }
  return from.root + nodes;
}

}  // namespace saturate::serve
