// SPDX-License-Identifier: Apache-2.0
#include "serve/json/json_constraint.h"
#include "serve/json/automaton_test.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <regex>
#include <set>
#include <string>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::serve {
namespace {

constexpr int32_t kEnd = 0;

// Every byte alone, an end, tokens as a byte-level vocabulary has them, and some at random.
std::shared_ptr<const TokenBytes> vocabulary() {
  std::vector<std::string> bytes = {"", ""};
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* text : {"{\"",
                           "\":",
                           "\": \"",
                           "\",",
                           "\"}",
                           "\"},",
                           "}}",
                           "]}",
                           "]]",
                           "},{",
                           " \"",
                           "\", \"",
                           ": ",
                           "[]",
                           "{}",
                           "true",
                           "tr",
                           "false",
                           "null",
                           "12",
                           "0.",
                           "e+",
                           "1e",
                           "-1",
                           ", ",
                           "\n  ",
                           "    ",
                           "name",
                           "\"name",
                           "\"name\"",
                           "\"name\":",
                           "age",
                           "\"a",
                           "na",
                           "me\"",
                           "caf\xC3\xA9",
                           "\xC3",
                           "\xA9",
                           "\xE2\x82",
                           "\x82\xAC",
                           "\xF0\x9F",
                           "\x98\x80",
                           "\\\"",
                           "\\u",
                           "\\ud",
                           "00",
                           "hello world",
                           "\"red\"",
                           "\"re",
                           "red",
                           "green\"",
                           "blue",
                           "a\"b",
                           "\\",
                           "x\\",
                           "\xED\xA0",
                           "abc\",\"",
                           "1,",
                           "2]",
                           "a rather long token of more than thirty-two characters",
                           "      ",
                           "\":{\"",
                           "\":[",
                           "\":\"",
                           "\"nal\":null}",
                           ",\"nal\": null}"})
    bytes.emplace_back(text);
  std::mt19937 random(5);
  const std::string some = "\"\"{}[]:,0123456789.eE+-truefalsn abxyz\\\n\xC3\xA9";
  for (int i = 0; i < 600; ++i) {
    std::string& text = bytes.emplace_back();
    for (size_t n = 1 + random() % 5; text.size() < n;) text += some[random() % some.size()];
  }
  return std::make_shared<const TokenBytes>(bytes);
}

Json schema_of(std::string text) {
  std::ranges::replace(text, '\'', '"');
  return parse_json(text, "a test");
}

const char* const kSchemas[] = {
    "{'type': 'object'}",
    "true",
    "{'type': 'string', 'minLength': 2, 'maxLength': 5}",
    "{'enum': ['red', 'green', 'blue', 1, 12, 1.5, null, {'a': [1, 2]}, 'caf\xC3\xA9', 'a\\'b']}",
    "{'type': 'object', 'properties': {'name': {'type': 'string', 'maxLength': 40}, 'age': "
    "{'type': "
    "'integer'}, 'na': {'type': 'number'}, 'tags': {'type': 'array', 'items': {'enum': ['a', "
    "'abc']}, "
    "'minItems': 1, 'maxItems': 3}}, 'required': ['name', 'tags'], 'additionalProperties': false}",
    "{'type': 'object', 'properties': {'name': {'type': 'boolean'}, 'nal': {'type': 'null'}}, "
    "'required': "
    "['nal'], 'additionalProperties': {'type': 'integer'}}",
    "{'anyOf': [{'type': 'object', 'properties': {'a': {'type': 'string'}}, 'required': ['a']}, "
    "{'type': "
    "'object', 'properties': {'a': {'type': 'number'}, 'b': {'const': 'x'}}, 'required': ['a', "
    "'b']}, "
    "{'type': ['integer', 'null']}]}",
    "{'$defs': {'tree': {'type': 'object', 'properties': {'v': {'type': 'integer'}, 'l': {'anyOf': "
    "[{'$ref': '#/$defs/tree'}, {'type': 'null'}]}, 'r': {'type': 'array', 'items': {'$ref': "
    "'#/$defs/tree'}}}, 'required': ['v', 'l']}}, '$ref': '#/$defs/tree'}",
    "{'type': 'array', 'items': {'type': ['number', 'string']}, 'minItems': 2}",
    "{'type': 'object', 'properties': {'name': {'type': 'string', 'pattern': "
    "'^(?:[a-z]{2,9}|\\\\d+-[^-b]*)$'}, 'age': {'type': ['integer', 'null'], 'minimum': -12, "
    "'exclusiveMaximum': 120}}, 'required': ['name', 'age']}",
    "{'type': 'string', 'pattern': '\\\"[ab1\\u00e9]+\\\\\\\\', 'maxLength': 9}"};

// What they let be written schema_test.cpp tries.
const char* const kMoreSchemas[] = {
    "{'type': 'array', 'items': {'type': 'number', 'minimum': -1.5, 'exclusiveMaximum': 12.25}}",
    "{'prefixItems': [{'type': 'integer', 'multipleOf': 6}, {'enum': ['a', 'abc']}], 'items': "
    "{'type': 'null'}, 'minItems': 1, 'maxItems': 4}",
    "{'properties': {'name': {'type': 'boolean'}, 'age': {'type': 'integer', 'maximum': 9}}, "
    "'patternProperties': {'^[0-9]+$': {'type': 'null'}, '^x': {'type': 'string'}}, "
    "'additionalProperties': {'type': 'boolean'}, 'maxProperties': 4}",
    "{'properties': {'a': {}, 'na': {}, 'name': {'const': 1}}, 'minProperties': 2, "
    "'maxProperties': 2}",
    "{'oneOf': [{'properties': {'a': {'const': 1}}, 'required': ['a'], 'type': 'object'}, "
    "{'properties': {'a': {'const': 12}, 'name': {'type': 'string'}}, 'required': ['a'], 'type': "
    "'object'}, {'type': 'array', 'items': {'maximum': 3}}]}"};

// Whether a value meets a schema, by the text of JSON Schema; knows what those of kSchemas say.
bool meets(const Json& whole, const Json& s, const Json& v) {
  if (s.if_bool() != nullptr) return *s.if_bool();
  if (const Json* to = s.find("$ref"))
    return meets(
        whole, to->if_string()->size() > 1 ? whole["$defs"][to->if_string()->substr(8)] : whole, v);
  if (const Json* list = s.find("anyOf"))
    return std::ranges::any_of(*list->if_array(),
                               [&](const Json& x) { return meets(whole, x, v); });
  if (const Json* list = s.find("enum")) return std::ranges::count(*list->if_array(), v) > 0;
  if (const Json* one = s.find("const")) return v == *one;
  const auto is = [&](const Json& type) {
    const std::string& t = *type.if_string();
    return t == "object"    ? v.if_object() != nullptr
           : t == "array"   ? v.if_array() != nullptr
           : t == "string"  ? v.if_string() != nullptr
           : t == "integer" ? v.if_int() != nullptr
           : t == "number"  ? v.number().has_value()
           : t == "boolean" ? v.if_bool() != nullptr
                            : v.is_null();
  };
  const Json::Array one = {s["type"]};
  if (!std::ranges::any_of(s["type"].if_array() ? *s["type"].if_array() : one, is)) return false;
  const auto within = [&](size_t n, const char* least, const char* most) {
    return (!s.find(least) || std::ssize(std::string(n, ' ')) >= *s[least].if_int()) &&
           (!s.find(most) || std::ssize(std::string(n, ' ')) <= *s[most].if_int());
  };
  if (const std::string* text = v.if_string())
    return within(decode_utf8(*text).size(), "minLength", "maxLength") &&
           (!s.find("pattern") || std::regex_search(*text, std::regex(*s["pattern"].if_string(),
                                                                      std::regex::ECMAScript)));
  if (const int64_t* n = v.if_int())
    return (!s.find("minimum") || *n >= *s["minimum"].if_int()) &&
           (!s.find("exclusiveMaximum") || *n < *s["exclusiveMaximum"].if_int());
  if (const Json::Array* items = v.if_array())
    return within(items->size(), "minItems", "maxItems") &&
           std::ranges::all_of(*items, [&](const Json& x) {
             return !s.find("items") || meets(whole, s["items"], x);
           });
  if (v.if_object() == nullptr) return true;
  if (const Json* names = s.find("required"))
    for (const Json& name : *names->if_array())
      if (!v.find(*name.if_string())) return false;
  for (const auto& [key, value] : *v.if_object()) {
    const Json* known = s["properties"].find(key);
    const Json* of = known ? known : s.find("additionalProperties");
    if (of && !meets(whole, *of, value)) return false;
  }
  return true;
}

TEST(JsonConstraint, MasksAreThoseOfEachTokenTriedAlone) {
  const auto tokens = vocabulary();
  std::mt19937 random(3);
  std::vector<const char*> all(std::begin(kSchemas), std::end(kSchemas));
  all.insert(all.end(), std::begin(kMoreSchemas), std::end(kMoreSchemas));
  for (const char* text : all) {
    SCOPED_TRACE(text);
    const JsonSchema schema = compile_json_schema(schema_of(text), "schema");
    JsonConstraint constraint(schema, tokens, {kEnd});
    JsonAutomaton automaton(schema);
    const auto follow = [&](std::vector<int32_t> stacks, std::string_view bytes) {
      for (const char c : bytes) {
        std::vector<int32_t> next;
        for (const int32_t s : stacks) automaton.step(s, static_cast<unsigned char>(c), next);
        std::ranges::sort(next);
        next.erase(std::ranges::unique(next).begin(), next.end());
        stacks = std::move(next);
      }
      return stacks;
    };
    for (int walk = 0; walk < 12; ++walk) {
      int32_t state = constraint.start();
      std::vector<int32_t> stacks = {automaton.start()};
      for (int step = 0; step < 40; ++step) {
        const auto mask = constraint.allowed(state);
        std::vector<int32_t> allowed;
        for (int32_t id = 0; id < std::ssize(*tokens); ++id) {
          const std::string& bytes = tokens->of(id);
          const bool want =
              id == kEnd
                  ? std::ranges::any_of(stacks, [&](int32_t s) { return automaton.complete(s); })
                  : !bytes.empty() && !follow(stacks, bytes).empty();
          ASSERT_EQ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0, want)
              << "\"" << bytes << "\"";
          if (want) allowed.push_back(id);
        }
        ASSERT_FALSE(allowed.empty());
        const int32_t id = allowed[random() % allowed.size()];
        if (id == kEnd) break;
        stacks = follow(std::move(stacks), tokens->of(id));
        state = constraint.next(state, id);
      }
    }
  }
}

TEST(JsonConstraint, WhatIsWrittenMeetsTheSchema) {
  const auto tokens = vocabulary();
  std::mt19937 random(7);
  for (const char* text : kSchemas) {
    SCOPED_TRACE(text);
    const Json schema = schema_of(text);
    JsonConstraint constraint(compile_json_schema(schema, "schema"), tokens, {kEnd});
    std::set<std::string> seen;
    for (int walk = 0; walk < 300; ++walk) {
      std::string written;
      int32_t state = constraint.start();
      for (int step = 0;; ++step) {
        ASSERT_LT(step, 20000);
        const auto mask = constraint.allowed(state);
        std::vector<int32_t> allowed, closing;
        for (int32_t id = 0; id < std::ssize(*tokens); ++id) {
          if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) == 0) continue;
          allowed.push_back(id);
          const std::string& bytes = tokens->of(id);
          if (bytes.empty() || bytes == "\"" || bytes.ends_with("}") || bytes == "]")
            closing.push_back(id);
        }
        ASSERT_FALSE(allowed.empty()) << written;
        // Sooner or later what is open is closed.
        const bool close = step > 25 && !closing.empty() && random() % 4 != 0;
        const auto& from = close ? closing : allowed;
        const int32_t id = from[random() % from.size()];
        if (id == kEnd) break;
        written += tokens->of(id);
        state = constraint.next(state, id);
      }
      const auto value = try_parse_json(written, {.max_depth = 80, .unique_names = false});
      ASSERT_TRUE(value) << written;
      EXPECT_TRUE(meets(schema, schema, *value)) << written;
      seen.insert(value->dump());
    }
    EXPECT_GT(seen.size(), size_t{5});
  }
}

TEST(JsonConstraint, TakesAndRefusesTexts) {
  struct Case {
    const char *schema, *text;
    bool whole;
  };
  const char* const person =
      "{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'string'}}, "
      "'required': "
      "['b'], 'additionalProperties': true}";
  for (const Case& c : {Case{"true", " {\"a\" : 1}", false},
                        {"true", "{\"a\":\n 1, \"b\": [ ] }", true},
                        {"true", "[1, 2,]", false},
                        {"true", "01", false},
                        {"true", "-0.5e+10", true},
                        {"true", "1e100", false},
                        {"true", "1234567890123456", false},
                        {"true", "\"\\u00e9\\ud7ff\"", true},
                        {"true", "\"\\ud800\"", false},
                        {"true", "\"\xED\xA0\x80\"", false},
                        {"true", "\"\xC0\x80\"", false},
                        {"true", "\"\t\"", false},
                        {"true", "{} ", false},
                        {"{'type': 'integer'}", "-12", true},
                        {"{'type': 'integer'}", "1.0", false},
                        {"{'enum': [1, 12]}", "1", true},
                        {"{'enum': [1, 12]}", "12", true},
                        {"{'enum': [1, 12]}", "122", false},
                        {"{'type': 'string', 'maxLength': 2}", "\"\xC3\xA9\\n\"", true},
                        {"{'type': 'string', 'maxLength': 2}", "\"abc\"", false},
                        {"{'type': 'string', 'minLength': 1}", "\"\"", false},
                        {person, "{\"b\": \"\"}", true},
                        {person, "{\"a\": 1, \"b\": \"\"}", true},
                        {person, "{\"a\": \"1\", \"b\": \"\"}", false},
                        {person, "{\"b\": \"\", \"a\": 1}", false},  // the order is the schema's
                        {person, "{\"ab\": [], \"b\": \"\", \"bb\": 1}", true},
                        {person, "{\"\\u0061\": [], \"b\": \"\"}", false},
                        {person, "{}", false}}) {
    JsonAutomaton automaton(compile_json_schema(schema_of(c.schema), "schema"));
    EXPECT_EQ(takes(automaton, c.text), c.whole) << c.schema << " " << c.text;
  }
}

TEST(JsonConstraint, TakesIntegersWithinBounds) {
  for (const auto& [least, most] : {std::pair{-1100, 1100},
                                    {0, 0},
                                    {-1, -1},
                                    {0, 255},
                                    {1, 999},
                                    {7, 1063},
                                    {95, 105},
                                    {-105, -95},
                                    {-1000, -1},
                                    {-999, 10},
                                    {-37, 412},
                                    {110, 1109}}) {
    for (const bool exclusive : {false, true}) {
      const int one = exclusive ? 1 : 0;
      JsonAutomaton automaton(compile_json_schema(
          Json{{"type", "integer"},
               {exclusive ? "exclusiveMinimum" : "minimum", least - one},
               {exclusive ? "exclusiveMaximum" : "maximum", exclusive ? most + 0.5 : most * 1.0}},
          "f"));
      for (int i = -1200; i <= 1200; ++i)
        ASSERT_EQ(takes(automaton, std::to_string(i)), least <= i && i <= most) << i;
      for (const char* text : {"", "-", "-0", "00", "01", "+1", "1.0", "1e1", "-01", "0x1"})
        EXPECT_FALSE(takes(automaton, text)) << text;
    }
  }
  // With one bound the other is that of all numbers: 15 digits.
  JsonAutomaton least(compile_json_schema(schema_of("{'type': 'integer', 'minimum': 18}"), "f"));
  JsonAutomaton most(compile_json_schema(schema_of("{'type': 'integer', 'maximum': 3}"), "f"));
  EXPECT_TRUE(takes(least, "18"));
  EXPECT_TRUE(takes(least, "999999999999999"));
  EXPECT_FALSE(takes(least, "17"));
  EXPECT_FALSE(takes(least, "1000000000000000"));
  EXPECT_TRUE(takes(most, "-999999999999999"));
  EXPECT_FALSE(takes(most, "4"));
  JsonAutomaton list(compile_json_schema(
      schema_of("{'type': 'array', 'items': {'type': 'integer', 'minimum': -1e300}}"), "f"));
  EXPECT_TRUE(takes(list, "[1, -20 ,3]"));
  EXPECT_FALSE(takes(list, "[1, 2"));
}

TEST(JsonConstraint, TakesFormats) {
  struct Case {
    const char* format;
    std::vector<std::string> good, bad;
  };
  for (const Case& c :
       {Case{"date",
             {"2026-11-30", "2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"},
             {"2026-11-31", "2023-02-29", "1900-02-29", "0000-01-01", "2026-13-01", "2026-1-01",
              "2026-01-00", "0000-02-29"}},
        {"time",
         {"00:00:00Z", "23:59:59.123456+05:30", "12:30:00-00:00"},
         {"24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00:00+24:00"}},
        {"date-time",
         {"2026-11-30T10:43:13Z", "2024-02-29T00:00:00.5-08:00"},
         {"2026-11-30", "2026-11-30 10:43:13Z", "2026-11-30T10:43:13"}},
        {"uuid",
         {"123e4567-e89b-12d3-a456-426614174000"},
         {"123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g"}},
        {"ipv4", {"0.0.0.0", "255.249.199.9"}, {"256.0.0.1", "1.2.3", "01.2.3.4"}},
        {"email",
         {"a@b.co", "first.last+tag@mail-host.example.org"},
         {"a@b", "a..b@c.de", ".a@b.co", "a@-b.co", "a b@c.de", "a@b.c0"}}}) {
    JsonAutomaton automaton(
        compile_json_schema(Json{{"type", "string"}, {"format", c.format}}, "f"));
    for (const std::string& text : c.good)
      EXPECT_TRUE(takes(automaton, '"' + text + '"')) << c.format << " " << text;
    for (const std::string& text : c.bad)
      EXPECT_FALSE(takes(automaton, '"' + text + '"')) << c.format << " " << text;
  }
}

TEST(JsonConstraint, NestingHasAnEnd) {
  JsonAutomaton automaton(compile_json_schema(Json(true), "schema"));
  std::vector<int32_t> stacks = {automaton.start()}, next;
  int opened = 0;
  for (;; ++opened) {
    next.clear();
    for (const int32_t s : stacks) automaton.step(s, '[', next);
    if (next.empty()) break;
    stacks = next;
  }
  EXPECT_EQ(opened, kMostJsonLevels);
  for (int i = 0; i < opened; ++i) {
    next.clear();
    for (const int32_t s : stacks) automaton.step(s, ']', next);
    stacks = next;
  }
  EXPECT_TRUE(automaton.complete(stacks.at(0)));
}

TEST(JsonSchema, RefusesWhatItCannotHoldAndSaysWhere) {
  struct Case {
    const char *schema, *message;
  };
  for (const Case& c :
       {Case{
            "{'type': 'object', 'properties': {'a': {'type': 'number', 'multipleOf': 0.12345678}}}",
            "f.properties.a.multipleOf: it is taken as a number above 0"},
        {"{'type': 'integer', 'multipleOf': 0}", "f.multipleOf: it is taken as a number above 0"},
        {"{'type': 'number', 'multipleOf': -0.5}", "f.multipleOf: it is taken as a number above 0"},
        {"{'type': 'number', 'multipleOf': 1e-16}",
         "f.multipleOf: it is taken as a number above 0"},
        {"{'type': 'number', 'multipleOf': 0.3, 'minimum': 0.1, 'maximum': 0.2}",
         "f.multipleOf: no number of at most 15 digits"},
        {"{'type': 'integer', 'multipleOf': 99991}", "f.multipleOf: it takes too many states"},
        {"{'type': 'integer', 'multipleOf': 7, 'minimum': 1, 'maximum': 6}",
         "f.multipleOf: no number of at most 15 digits"},
        {"{'type': 'string', 'pattern': 'a(?=b)'}", "f.pattern: at character 2, \"(?=b)\": look"},
        {"{'type': 'string', 'pattern': 1}", "f.pattern: it must be a text"},
        {"{'type': 'string', 'pattern': '^a$', 'minLength': 2}", "f.pattern: no text meets it"},
        {"{'type': 'string', 'pattern': 'a', 'format': 'date'}", "f.format: it cannot stand"},
        {"{'type': 'string', 'format': 'hostname'}", "f.format: it is not supported (date, time"},
        {"{'type': 'integer', 'format': 'date'}", "f.format: it says nothing of the type"},
        {"{'type': 'integer', 'pattern': 'a'}", "f.pattern: it says nothing of the type"},
        {"{'type': 'string', 'minimum': 1}", "f.minimum: it says nothing of the type"},
        {"{'type': 'number', 'minimum': 1, 'exclusiveMaximum': 1}",
         "f.exclusiveMaximum: no number of at most 15 digits"},
        {"{'type': 'number', 'minimum': 1e15}", "f.minimum: no number of at most 15 digits"},
        {"{'type': 'integer', 'minimum': true}", "f.minimum: it must be a number"},
        {"{'type': 'integer', 'exclusiveMinimum': 1, 'maximum': 1.5}",
         "f.maximum: no number of at most 15 digits"},
        {"{'type': 'integer', 'minimum': 1e15}", "f.minimum: no number of at most 15 digits"},
        {"{'enum': ['a'], 'pattern': 'a'}", "f.pattern: it cannot stand beside"},
        {"{'anyOf': [{'type': 'null'}], 'type': 'array'}", "f.anyOf: no value meets any of its"},
        {"{'anyOf': [{'not': {}}]}", "f.anyOf[0].not: it is not supported"},
        {"{'allOf': [{'enum': {}}, {'enum': [1]}]}", "f.enum: give a list of at least one value"},
        {"{'allOf': [{'type': 'text'}, {'type': 'null'}]}", "f.type: it is no name of a type"},
        {"{'allOf': []}", "f.allOf: give a list of at least one schema"},
        {"{'allOf': [{'type': 'string'}, {'type': ['null', 'number']}]}",
         "f: no value meets all of its parts"},
        {"{'allOf': [{'pattern': 'a'}, {'pattern': 'b'}]}", "f.pattern: two parts of the schema"},
        {"{'allOf': [{'prefixItems': [{}]}, {'items': {}}]}", "f.items: two parts of the schema"},
        {"{'allOf': [{'$ref': '#'}]}", "f.allOf"},
        {"{'properties': {'a': {'allOf': [{'not': {}}, {}]}}}", "f.properties.a.not: it is not"},
        {"{'oneOf': [{'type': 'number'}, {'type': 'integer'}]}",
         "f.oneOf: [0] and [1] may both hold of one value"},
        {"{'oneOf': [{'properties': {'a': {'const': 1}}}, {'properties': {'a': {'const': 2}}}]}",
         "f.oneOf: [0] and [1] may both hold of one value"},
        {"{'unevaluatedProperties': {}}", "f.unevaluatedProperties: it is taken as false"},
        {"{'uniqueItems': true}", "f.uniqueItems: it is not supported"},
        {"{'prefixItems': [{}], 'items': false, 'minItems': 2}", "f.minItems: no list has so many"},
        {"{'prefixItems': {}}", "f.prefixItems: it must be a list"},
        {"{'prefixItems': [{'$ref': '#'}], 'minItems': 1}", "f: no value that ends meets it"},
        {"{'minProperties': 2}", "f.minProperties: it is held only with names"},
        {"{'properties': {'a': {}, 'b': {}}, 'required': ['a', 'b'], 'maxProperties': 1}",
         "f.maxProperties: more are required"},
        {"{'properties': {'a': {'$ref': '#'}}, 'minProperties': 1}",
         "f: no value that ends meets it"},
        {"{'properties': {'ab': {'type': 'null'}}, 'required': ['ab'], 'patternProperties': {'a': "
         "{'type': 'string'}}}",
         "f.properties.ab: it is required, and no value meets it"},
        {"{'properties': {'a\\n': {}}, 'patternProperties': {'a': {}}}", "control characters"},
        {"{'patternProperties': {'(': {}}}", "f.patternProperties.(: at character 1"},
        {"{'propertyNames': {'type': ['string', 'null']}}", "f.propertyNames: it must be"},
        {"{'propertyNames': {'maxLength': 1}, 'required': ['ab']}", "f.propertyNames: it does not"},
        {"{'type': 'text'}", "f.type: it must be object, array"},
        {"{'type': 'integer', 'maxLength': 2}", "f.maxLength: it says nothing of the type"},
        {"{'type': 'string', 'minLength': 3, 'maxLength': 2}",
         "f.minLength: it is above maxLength"},
        {"{'type': 'array', 'minItems': -1}", "f.minItems: it must be a whole number"},
        {"{'properties': {}, 'items': {}}", "f: it has keywords of several types"},
        {"{'type': 'object', 'properties': {}, 'required': ['a']}",
         "f.required: it names a, which"},
        {"{'properties': {'a': false}, 'required': ['a']}", "f.properties.a: it is required"},
        {"{'enum': []}", "f.enum: give a list of at least one value"},
        {"{'enum': [1], 'type': 'string'}", "f: no value that it lists is of its type"},
        {"{'$ref': 'http://x'}", "f.$ref: a reference must be"},
        {"{'$ref': '#/$defs/a'}", "f.$ref: there is no #/$defs/a"},
        {"{'$ref': '#'}", "f.$ref: it refers to itself"},
        {"{'properties': {'a': {'$id': 'x', '$defs': {'t': {}}, '$ref': '#/$defs/t'}}, '$defs': "
         "{'t': {}}}",
         "f.properties.a.$id: references below it"},
        {"{'anyOf': [{'$ref': '#'}]}", "f: an anyOf refers to itself"},
        {"{'properties': {'a': {'$ref': '#'}}, 'required': ['a']}",
         "f: no value that ends meets it"},
        {"{'items': {'$ref': '#'}, 'minItems': 1}", "f: no value that ends meets it"},
        {"false", "f: false allows no value"},
        {"[]", "f: a schema must be an object or true"}}) {
    try {
      compile_json_schema(schema_of(c.schema), "f");
      ADD_FAILURE() << c.schema;
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find(c.message), std::string_view::npos) << e.what();
      EXPECT_EQ(e.code(), Errc::invalid_argument);
    }
  }
}

TEST(JsonSchema, HasBounds) {
  Json many{Json::Object{}}, values{Json::Array{}};
  for (int i = 0; i <= 4096; ++i) {
    many.add("p" + std::to_string(i), true);
    values.push_back(i);
  }
  EXPECT_THROW(compile_json_schema(Json{{"properties", many}}, "f"), Error);
  EXPECT_THROW(compile_json_schema(Json{{"enum", values}}, "f"), Error);
  Json chain{Json::Object{}};  // each refers to the next, deeper than a stack should go
  for (int i = 0; i < 2000; ++i)
    chain.add("d" + std::to_string(i), Json{{"$ref", "#/$defs/d" + std::to_string(i + 1)}});
  chain.add("d2000", true);
  EXPECT_THROW(compile_json_schema(Json{{"$defs", chain}, {"$ref", "#/$defs/d0"}}, "f"), Error);
}

TEST(JsonConstraint, NeedsTokensThatSpellIt) {
  const auto tokens =
      std::make_shared<const TokenBytes>(std::vector<std::string>{"", "a", "{", "}"});
  EXPECT_THROW(JsonConstraint(compile_json_schema(Json(true), "f"), tokens, {0}), Error);
  // All that JSON needs, and "b".
  std::vector<std::string> bytes = {""};
  for (const char c : std::string("{}[]:,\"-0123456789truefalsnb")) bytes.emplace_back(1, c);
  const auto with = [&](const char* pattern) {
    JsonConstraint(compile_json_schema(Json{{"type", "string"}, {"pattern", pattern}}, "f"),
                   std::make_shared<const TokenBytes>(bytes), {0});
  };
  EXPECT_NO_THROW(with("^[ab]$"));
  EXPECT_NO_THROW(with("."));
  EXPECT_THROW(with("^x$"), Error);
  EXPECT_THROW(with("^b\u00e9$"), Error);
  EXPECT_NO_THROW(with("^(b|\\.b)$"));  // the point never comes
}

}  // namespace
}  // namespace saturate::serve
