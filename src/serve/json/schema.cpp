// SPDX-License-Identifier: Apache-2.0
#include "serve/json/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "serve/json/dfa_operations.h"
#include "serve/json/number_pattern.h"
#include "serve/json/schema_parts.h"

namespace saturate::serve {
namespace {

using Node = JsonSchema::Node;
using Kind = Node::Kind;

constexpr size_t kMostNodes = 4096;
constexpr size_t kMostProperties = 1024, kMostValues = 4096;  // of one object, of one enum
constexpr int kMostDepth = 256;  // of schemas in schemas, by references too: what a stack holds
constexpr size_t kMostStates = 16384;  // of all patterns, half a kilobyte each
constexpr size_t kMostNamePatterns = 16, kMostNameClasses = 32;
constexpr int32_t kEndless = INT32_MAX / 2;
constexpr int32_t kNotYet = -2;

// Keywords that say something of values of one type.
const std::array<std::pair<std::string_view, std::vector<const char*>>, 4> kOfTypes = {
    {{"object",
      {"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
       "minProperties", "maxProperties"}},
     {"array", {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}},
     {"string", {"minLength", "maxLength", "pattern", "format"}},
     {"number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}}}};
constexpr int64_t kMostCount = int64_t{1} << 20;  // of minItems and its kin

[[noreturn]] void refuse(const std::string& where, std::string_view what) {
  throw Error(Errc::invalid_argument, "schema", fmt::format("{}: {}", where, what));
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
      : whole_(schema),
        where_(std::move(where)),
        budget_(budget != nullptr ? *budget : own_),
        parts_(schema, budget_) {}

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
    const int32_t node = compile_or_none(s, where);
    if (node < 0)
      refuse(where, is_false(s) ? "false allows no value; leave it out"
                                : "no value meets all of its parts; correct one of them");
    return node;
  }
  static bool is_false(const Json& s) { return s.if_bool() != nullptr && !*s.if_bool(); }

  // -1: no value meets it.
  int32_t compile_or_none(const Json& s, const std::string& where) {
    if (const bool* all = s.if_bool()) return *all ? any() : -1;
    if (s.if_object() == nullptr) refuse(where, "a schema must be an object or true");
    if (const auto known = known_.find(&s); known != known_.end()) return known->second;
    const Deeper deeper(depth_);
    if (depth_ > kMostDepth) refuse(where, "references lead too deep; make the schema flatter");
    parts_.require_no_base(s, where);
    if (SchemaParts::has_parts(s)) return together(s, where);
    if (s.find("$ref") != nullptr) return another(s, where);
    const int32_t node = add({});
    known_[&s] = node;  // before its parts, which may refer to it
    Node made = described(s, where);
    out_.nodes[static_cast<size_t>(node)] = std::move(made);
    return node;
  }

  // A schema that has several parts. The same text is the same schema wherever it stands, so that one that leads back
  // to itself ends.
  int32_t together(const Json& s, const std::string& where) {
    const auto [at, fresh] = joined_.try_emplace(s.dump(), kNotYet);
    if (!fresh && at->second == kNotYet) refuse(where, "it refers to itself and to nothing else");
    if (!fresh) return known_[&s] = at->second;
    const Json& one = made_.emplace_back(of_its_type(parts_.joined(s, where)));
    if (is_false(one)) return at->second = -1;
    if (one.size() == 0) return at->second = any();
    const int32_t node = add({});
    at->second = known_[&s] = node;
    Node made = described(one, where);
    out_.nodes[static_cast<size_t>(node)] = std::move(made);
    return node;
  }

  // Without what says nothing of its type: one part may speak of types that another one does not allow.
  static Json of_its_type(Json joined) {
    const Json* type = joined.find("type");
    if (type == nullptr || joined.find("enum") != nullptr || joined.find("const") != nullptr)
      return joined;
    const Json::Array one = {*type};
    const Json::Array& types = type->if_array() != nullptr ? *type->if_array() : one;
    Json out{Json::Object{}};
    for (const auto& [key, value] : *joined.if_object()) {
      const auto of = std::ranges::find_if(
          kOfTypes, [&](const auto& o) { return std::ranges::count(o.second, key) > 0; });
      if (of == kOfTypes.end() || std::ranges::any_of(types, [&](const Json& t) {
            return t == Json(of->first) || (of->first == "number" && t == Json("integer"));
          }))
        out.add(key, value);
    }
    return out;
  }

  // A schema that is another one.
  int32_t another(const Json& s, const std::string& where) {
    if (!open_.insert(&s).second) refuse(where, "it refers to itself and to nothing else");
    const std::string at = where + ".$ref";
    const int32_t node = compile_or_none(parts_.resolve(s["$ref"], at), at);
    open_.erase(&s);
    return node;
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
    constexpr std::array<std::string_view, 29> kWords = {"type",
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
                                                         "exclusiveMaximum",
                                                         "multipleOf",
                                                         "prefixItems",
                                                         "additionalItems",
                                                         "minProperties",
                                                         "maxProperties",
                                                         "patternProperties",
                                                         "propertyNames",
                                                         "uniqueItems"};
    return std::ranges::count(kWords, key) > 0;
  }

  Node described(const Json& s, const std::string& where) {
    for (const char* word : {"anyOf", "oneOf"}) {
      if (s.find(word) == nullptr) continue;
      allow(s, {word}, where);
      const Json::Array& list = parts_.alternatives(s, word, where);
      Node n;
      for (size_t i = 0; i < list.size(); ++i) {
        const int32_t node = compile_or_none(list[i], fmt::format("{}.{}[{}]", where, word, i));
        if (node >= 0) n.alternatives.push_back(node);
      }
      if (n.alternatives.empty())
        refuse(where + "." + word, "no value meets any of its schemas; correct one of them");
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
    for (const auto& [type, words] : kOfTypes)
      if (std::ranges::any_of(words, [&](const char* w) { return s.find(w) != nullptr; }))
        types.emplace_back(type);
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
      const auto of = std::ranges::find_if(
          kOfTypes, [&](const auto& o) { return std::ranges::count(o.second, key) > 0; });
      if (of == kOfTypes.end()) {
        allow(Json{{key, nullptr}}, {"type"}, where);
      } else if (!has(of->first) && !(of->first == "number" && has("integer"))) {
        refuse(where + "." + key, "it says nothing of the type here; leave it out");
      }
    }
    if (type == "object") return object(s, where);
    if (type == "array") return list(s, where);
    if (type == "string") {
      Node n{.kind = Kind::string};
      counts(s, "minLength", "maxLength", n, where);
      n.pattern = text_pattern(s, n, where);
      return n;
    }
    if (type == "number" || type == "integer")
      return {.kind = type == "number" ? Kind::number : Kind::integer,
              .pattern = range(s, type == "integer", where)};
    if (type == "boolean") return {.kind = Kind::literal, .texts = {"false", "true"}};
    if (type == "null") return {.kind = Kind::literal, .texts = {"null"}};
    return {.alternatives = {any()}};
  }

  Node list(const Json& s, const std::string& where) {
    Node n{.kind = Kind::array};
    counts(s, "minItems", "maxItems", n, where);
    if (const Json* unique = s.find("uniqueItems");
        unique != nullptr && *unique != Json(false) && n.most != 0 && n.most != 1)
      refuse(where + ".uniqueItems",
             "it is not supported; leave it out and check the value afterwards");
    // Draft 7 has the first elements in items and all others in additionalItems.
    const Json *first = s.find("prefixItems"), *rest = s.find("items");
    std::string at = where + ".prefixItems", at_rest = where + ".items";
    if (rest != nullptr && rest->if_array() != nullptr) {
      if (first != nullptr) refuse(at_rest, "beside prefixItems it must be a schema");
      std::swap(at, at_rest);
      first = std::exchange(rest, s.find("additionalItems"));
      at = where + ".items";
      at_rest = where + ".additionalItems";
    } else if (s.find("additionalItems") != nullptr) {
      refuse(where + ".additionalItems", "it says nothing beside this items; leave it out");
    }
    int32_t end = -1;  // so many are all; -1: there may be more
    if (first != nullptr) {
      if (first->if_array() == nullptr) refuse(at, "it must be a list of schemas");
      if (first->size() > kMostProperties) refuse(at, "it has more than 1024; make it smaller");
      for (size_t i = 0; i < first->size() && end < 0; ++i) {
        const int32_t node = compile_or_none((*first)[i], fmt::format("{}[{}]", at, i));
        if (node < 0)
          end = static_cast<int32_t>(i);
        else
          n.first.push_back(node);
      }
    }
    const auto there = static_cast<int32_t>(n.first.size());
    // None behind the first ones, unless it is said or they are too few.
    if (end < 0 && (rest != nullptr || first == nullptr || n.least > there))
      n.items = rest != nullptr ? compile_or_none(*rest, at_rest) : any();
    if (n.items < 0) n.most = n.most < 0 ? there : std::min(n.most, there);
    if (n.most >= 0 && n.least > n.most)
      refuse(where + ".minItems", "no list has so many elements; lower it");
    if (n.items >= 0 && n.most >= 0 && n.most <= there) n.items = -1;
    return n;
  }

  Node object(const Json& s, const std::string& where) {
    Node n{.kind = Kind::object};
    counts(s, "minProperties", "maxProperties", n, where);
    std::set<std::string> required;
    std::vector<std::string> required_in_order;
    if (const Json* names = s.find("required")) {
      if (names->if_array() == nullptr) refuse(where + ".required", "it must be a list of names");
      for (const Json& name : *names->if_array()) {
        if (name.if_string() == nullptr) refuse(where + ".required", "it must be a list of names");
        if (required.insert(*name.if_string()).second)
          required_in_order.push_back(*name.if_string());
      }
    }
    const Json *properties = s.find("properties"), *more = s.find("additionalProperties");
    const std::vector<NamePattern> patterns = patterns_of_names(s, where);
    std::vector<std::string> never;  // names that no value may have
    if (properties != nullptr) {
      if (properties->if_object() == nullptr)
        refuse(where + ".properties", "it must be an object of schemas");
      for (const auto& [name, schema] : *properties->if_object()) {
        const std::string spelled = Json(name).dump().substr(1), at = where + ".properties." + name;
        const int32_t node = compile_or_none(with_patterns(spelled, schema, patterns, at), at);
        if (node >= 0)
          n.properties.push_back({spelled, node, required.erase(name) > 0});
        else if (required.contains(name))
          refuse(at, "it is required, and no value meets it");
        else
          never.push_back(spelled);
      }
    }
    const bool none =
        more != nullptr ? is_false(*more) : properties != nullptr || !patterns.empty();
    const int32_t rest = none              ? -1
                         : more != nullptr ? compile_or_none(*more, where + ".additionalProperties")
                                           : any();
    // Those that are nowhere described are as all others.
    for (const std::string& name : required_in_order) {
      if (!required.contains(name)) continue;
      if (rest < 0 || !patterns.empty())
        refuse(where + ".required",
               fmt::format("it names {}, which properties does not have; add it there", name));
      n.properties.push_back({Json(name).dump().substr(1), rest, true});
    }
    if (n.properties.size() > kMostProperties)
      refuse(where + ".properties", "it has more than 1024; make the object smaller");
    if (patterns.empty() && s.find("propertyNames") == nullptr && (never.empty() || rest < 0))
      n.rest = rest;
    else
      names(s, patterns, never, rest, n, where);
    members(n, where);
    return n;
  }

  struct NamePattern {
    Dfa dfa;
    const Json* schema;
    std::string where;
  };
  std::vector<NamePattern> patterns_of_names(const Json& s, const std::string& where) {
    std::vector<NamePattern> all;
    const Json* patterns = s.find("patternProperties");
    if (patterns == nullptr) return all;
    const std::string at = where + ".patternProperties";
    if (patterns->if_object() == nullptr) refuse(at, "it must be an object of schemas");
    if (patterns->size() > kMostNamePatterns)
      refuse(at, "it has more than 16 patterns; make them fewer");
    for (const auto& [pattern, schema] : *patterns->if_object()) {
      const std::string here = at + "." + pattern;
      all.push_back({compile_pattern(pattern, here, 0, -1, &budget_), &schema, here});
    }
    return all;
  }

  // The schema of a property, with those of the patterns that its name matches.
  const Json& with_patterns(const std::string& spelled, const Json& schema,
                            const std::vector<NamePattern>& patterns, const std::string& where) {
    if (patterns.empty()) return schema;
    for (size_t i = 0; i + 1 < spelled.size(); ++i)
      if (spelled[i] == '\\' && spelled[++i] != '"' && spelled[i] != '\\')
        refuse(where, "a name of control characters cannot stand beside patternProperties");
    Json::Array all = {schema};
    for (const NamePattern& p : patterns)
      if (takes_text(p.dfa, std::string_view(spelled).substr(0, spelled.size() - 1)))
        all.push_back(*p.schema);
    return all.size() == 1 ? schema : made_.emplace_back(Json{{"allOf", Json(std::move(all))}});
  }

  // Whether as many members as there must be can come.
  void members(Node& n, const std::string& where) const {
    const auto all = std::ssize(n.properties);
    const bool others = n.rest >= 0 || !n.names.empty();
    const auto required =
        std::ranges::count_if(n.properties, [](const auto& p) { return p.required; });
    if (n.most >= 0 && required > n.most)
      refuse(where + ".maxProperties", "more are required; raise it");
    if (n.least > all + (others ? 1 : 0))
      refuse(where + ".minProperties",
             fmt::format("it is held only with names that are in properties, and one other; {} are",
                         all));
    if (n.least <= required) n.least = 0;
    if (!others && n.most >= all) n.most = -1;
  }

  // Which other names may come, those with the same schemas together: each name is in one place.
  void names(const Json& s, const std::vector<NamePattern>& patterns,
             const std::vector<std::string>& never, int32_t rest, Node& n,
             const std::string& where) {
    Dfa open = compile_pattern("", where, 0, -1, &budget_);
    if (const Json* of_all = s.find("propertyNames"))
      open = in_both(open, of_names(*of_all, where + ".propertyNames"), where + ".propertyNames",
                     budget_);
    const auto text_of = [](const std::string& spelled) {
      return spelled.substr(0, spelled.size() - 1);
    };
    std::vector<std::string> known;
    for (const std::string& name : never) known.push_back(text_of(name));
    std::erase_if(n.properties, [&](const JsonSchema::Property& p) {
      known.push_back(text_of(p.name));
      if (takes_text(open, known.back())) return false;
      if (p.required) refuse(where + ".propertyNames", "it does not allow a name that is required");
      return true;
    });
    struct Class {
      Dfa dfa;
      std::vector<const NamePattern*> of;
    };
    std::vector<Class> classes(1);
    classes[0].dfa = in_first_alone(open, of_texts(known, where), where, budget_);
    for (const NamePattern& p : patterns) {
      std::vector<Class> parts;
      for (const Class& c : classes) {
        parts.push_back({in_both(c.dfa, p.dfa, p.where, budget_), c.of});
        parts.back().of.push_back(&p);
        parts.push_back({in_first_alone(c.dfa, p.dfa, p.where, budget_), c.of});
      }
      std::erase_if(parts, [](const Class& c) { return c.dfa.states.empty(); });
      if (parts.size() > kMostNameClasses)
        refuse(p.where, "names match the patterns together in more than 32 ways; make them fewer");
      classes = std::move(parts);
    }
    for (Class& c : classes) {
      if (c.dfa.states.empty()) continue;
      int32_t node = rest;
      if (c.of.size() == 1) node = compile_or_none(*c.of[0]->schema, c.of[0]->where);
      if (c.of.size() > 1) {
        Json::Array all;
        for (const NamePattern* p : c.of) all.push_back(*p->schema);
        node = compile_or_none(made_.emplace_back(Json{{"allOf", Json(std::move(all))}}),
                               c.of.back()->where);
      }
      if (node >= 0) n.names.push_back({keep(std::move(c.dfa), where), node});
    }
  }

  // The names that a schema of texts allows.
  Dfa of_names(const Json& s, const std::string& where) {
    if (const bool* all = s.if_bool(); all != nullptr && !*all) return {};
    const int32_t node = compile(s, where);
    const Node& n = out_.nodes[static_cast<size_t>(node)];
    if (n.kind == Kind::literal) {
      std::vector<std::string> texts;
      for (const std::string& text : n.texts)
        if (text.starts_with('"')) texts.push_back(text.substr(1, text.size() - 2));
      return of_texts(texts, where);
    }
    if (node == any_) return compile_pattern("", where, 0, -1, &budget_);
    if (n.kind != Kind::string)
      refuse(where, "it must be {\"pattern\"}, {\"enum\"}, a format or lengths of a text");
    if (n.pattern >= 0) return out_.patterns[static_cast<size_t>(n.pattern)];
    return compile_pattern("", where, n.least, n.most, &budget_);
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
    return at->second = keep(compile_pattern(pattern, where, least, most, &budget_), where);
  }
  int32_t keep(Dfa dfa, const std::string& where) {
    if ((states_ += dfa.states.size()) > kMostStates)
      refuse(where, "the patterns of the schema have more than 16384 states; make them smaller");
    out_.patterns.push_back(std::move(dfa));
    return static_cast<int32_t>(out_.patterns.size() - 1);
  }

  // The number of the pattern of numbers within the bounds that it gives, -1 without any.
  int32_t range(const Json& s, bool whole, const std::string& where) {
    NumberRange r;
    r.whole = whole;
    std::string last;
    for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
      const Json* value = s.find(key);
      if (value == nullptr) continue;
      last = where + "." + key;
      if (!value->number()) refuse(last, "it must be a number");
      const bool lower = std::string_view(key).ends_with("inimum"), exclusive = key[0] == 'e';
      std::optional<NumberBound>& bound = lower ? r.least : r.most;
      const double is = *value->number();
      const bool tighter = !bound || (lower ? is > bound->value : is < bound->value) ||
                           (is == bound->value && exclusive);
      if (tighter) bound = NumberBound{is, exclusive};
    }
    if (const Json* of = s.find("multipleOf")) {
      last = where + ".multipleOf";
      const std::optional<double> value = of->number();
      r.multiple = number_multiple(value.value_or(0));
      if (!r.multiple)
        refuse(
            last,
            "it is taken as a number above 0 whose digits are 1 .. 1000000, with at most 15 behind "
            "the point; leave it out and check the value afterwards");
      r.whole = r.whole || r.multiple->decimals == 0;
    }
    if (last.empty()) return -1;
    const auto text = [](const std::optional<NumberBound>& b) {
      return b ? fmt::format("{}{}", b->value, b->exclusive ? "!" : "") : std::string();
    };
    const std::string name =
        fmt::format("{} {} {} {} {}", text(r.least), text(r.most), r.whole,
                    r.multiple ? r.multiple->digits : 0, r.multiple ? r.multiple->decimals : 0);
    const auto [at, fresh] = numbers_.try_emplace(name, -1);
    if (fresh) at->second = keep(number_pattern(r, last, budget_), last);
    return at->second;
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

  // Of the required members, and of those that must be there beside them the flattest.
  int32_t levels_of_members(const Node& n) const {
    const auto of = [&](int32_t i) {
      return std::min(kEndless, 1 + out_.nodes[static_cast<size_t>(i)].levels);
    };
    int32_t levels = 1, required = 0, other = kEndless;
    std::vector<int32_t> optional;
    for (const JsonSchema::Property& p : n.properties) {
      if (p.required)
        levels = std::max(levels, of(p.node));
      else
        optional.push_back(of(p.node));
      required += p.required ? 1 : 0;
    }
    if (n.least <= required) return levels;
    if (n.rest >= 0) other = of(n.rest);
    for (const JsonSchema::Names& one : n.names) other = std::min(other, of(one.node));
    optional.push_back(other);
    std::ranges::sort(optional);
    return std::max(levels, optional[static_cast<size_t>(n.least - required - 1)]);
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
          levels = 1;
          for (int32_t i = 0; i < n.least && i <= std::ssize(n.first); ++i) {
            const int32_t at = i < std::ssize(n.first) ? n.first[static_cast<size_t>(i)] : n.items;
            levels = std::max(levels, std::min(kEndless, 1 + of(at)));
          }
        } else if (n.kind == Kind::object) {
          levels = levels_of_members(n);
        }
        changed = changed || levels != n.levels;
        n.levels = levels;
      }
    }
  }

  const Json& whole_;
  const std::string where_;
  PatternBudget own_;
  PatternBudget& budget_;
  SchemaParts parts_;
  std::list<Json> made_;                    // schemas that several became
  std::map<std::string, int32_t> joined_;   // by their text
  std::map<std::string, int32_t> numbers_;  // patterns of numbers, by their bounds
  JsonSchema out_;
  int32_t any_ = -1;
  int depth_ = 0;
  size_t states_ = 0;
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
    for (int32_t& each : n.first) each += nodes;
    for (JsonSchema::Names& each : n.names) each = {each.pattern + patterns, each.node + nodes};
    if (n.rest >= 0) n.rest += nodes;
    if (n.items >= 0) n.items += nodes;
    if (n.pattern >= 0) n.pattern += patterns;
    to.nodes.push_back(std::move(n));
  }
  return from.root + nodes;
}

}  // namespace saturate::serve
