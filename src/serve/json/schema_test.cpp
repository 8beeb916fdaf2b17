// SPDX-License-Identifier: Apache-2.0
// Keywords of which several make one: members and elements that are counted, names by patterns, and schemas of parts.
#include "serve/json/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "serve/json/automaton_test.h"

namespace saturate::serve {
namespace {

std::string quoted(std::string text) {
  std::ranges::replace(text, '\'', '"');
  return text;
}

struct Case {
  const char* schema;
  std::vector<const char*> good, bad;
};

void expect(const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.schema);
    JsonAutomaton automaton(compile_json_schema(parse_json(quoted(c.schema), "a test"), "f"));
    for (const char* text : c.good) EXPECT_TRUE(takes(automaton, quoted(text))) << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(automaton, quoted(text))) << text;
  }
}

TEST(JsonSchema, HoldsNumbersToBounds) {
  expect(
      {{"{'type': 'number', 'minimum': 0.5, 'exclusiveMaximum': 100}",
        {"0.5", "0.50", "99.99", "7"},
        {"0.49", "100", "100.0", "1e1", "-1"}},
       {"{'type': ['number', 'null'], 'exclusiveMinimum': 0}", {"0.1", "null"}, {"0", "-1"}},
       {"{'maximum': 2.5}", {"2.5", "-100.125"}, {"2.51"}},
       {"{'minimum': 1, 'exclusiveMinimum': 1, 'maximum': 9, 'exclusiveMaximum': 9.5}",
        {"1.1", "9"},
        {"1", "9.1"}},
       {"{'type': 'array', 'items': {'type': 'number', 'minimum': 0, 'maximum': 1}}",
        {"[0.5, 1 ,0]", "[]"},
        {"[1.5]", "[0.5"}},
       {"{'type': 'integer', 'multipleOf': 5, 'minimum': 1}", {"5", "100"}, {"0", "7", "-5"}},
       {"{'type': 'number', 'multipleOf': 0.01, 'minimum': 0, 'exclusiveMaximum': 100}",
        {"0", "0.0", "0.07", "19.99", "5", "5.5", "5.50", "99.99"},
        {"0.001", "5.500", "100", "-0.01", "99.999"}},
       {"{'type': 'number', 'multipleOf': 0.5}",
        {"0", "0.5", "1.0", "-1.5", "12", "1000000.5"},
        {"0.25", "0.7", "1.50", "."}},
       {"{'type': 'number', 'multipleOf': 2.5}",
        {"2.5", "5", "5.0", "-7.5", "10"},
        {"2", "2.0", "7"}},
       {"{'type': 'integer', 'multipleOf': 0.5}", {"0", "7", "-3"}, {"0.5", "7.0"}},
       {"{'type': 'integer', 'multipleOf': 2.5}", {"0", "5", "-10"}, {"2", "2.5", "7"}},
       {"{'type': 'number', 'multipleOf': 0.0001}", {"0.0075", "0.007", "3"}, {"0.00751"}},
       {"{'type': 'number', 'multipleOf': 1e-8}", {"12391239123", "0.00000001"}, {"0.000000001"}},
       {"{'type': 'number', 'multipleOf': 0.25, 'minimum': 0.1, 'maximum': 0.6}",
        {"0.25", "0.5", "0.50"},
        {"0", "0.2", "0.75", "0.3"}}});
}

TEST(JsonSchema, CountsMembers) {
  expect({{"{'properties': {'a': {}, 'b': {}, 'c': {}}, 'minProperties': 2}",
           {"{'a':1,'b':2}", "{'b':1,'c':2}", "{'a':1,'b':2,'c':3}"},
           {"{}", "{'a':1}", "{'c':1}"}},
          {"{'properties': {'a': {}, 'b': {}, 'c': {}}, 'required': ['c'], 'maxProperties': 2}",
           {"{'c':1}", "{'a':1,'c':2}"},
           {"{'a':1,'b':2}", "{'a':1,'b':2,'c':3}", "{'a':1}"}},
          {"{'type': 'object', 'minProperties': 1, 'maxProperties': 2}",
           {"{'x':1}", "{'x':1,'y':2}"},
           {"{}", "{'x':1,'y':2,'z':3}"}},
          {"{'properties': {'a': {}}, 'additionalProperties': true, 'minProperties': 2}",
           {"{'a':1,'x':2}", "{'x':1,'a':2}"},
           {"{'a':1}", "{'x':1,'x':2}", "{'x':1}"}},
          {"{'type': 'object', 'maxProperties': 0}", {"{}"}, {"{'a':1}"}}});
}

TEST(JsonSchema, HoldsNamesToPatterns) {
  expect(
      {{"{'patternProperties': {'^n_': {'type': 'integer'}, '^s_': {'type': 'string'}}}",
        {"{}", "{'n_a':1,'s_b':'x','n_':2}"},
        {"{'n_a':'x'}", "{'s_b':1}", "{'x':1}"}},
       {"{'properties': {'id': {'type': 'integer'}}, 'patternProperties': {'^[0-9]+$': {'type': "
        "'null'}}, 'additionalProperties': {'type': 'boolean'}}",
        {"{'id':1,'12':null,'x':true}", "{'x1':false,'id':2}"},
        {"{'12':true}", "{'x':null}", "{'id':true}", "{'x':true,'12':1}"}},
       {"{'propertyNames': {'maxLength': 2}, 'additionalProperties': {'type': 'integer'}}",
        {"{'ab':1}", "{'':1,'b':2}"},
        {"{'abc':1}"}},
       {"{'properties': {'a': {}, 'long': {}}, 'propertyNames': {'enum': ['a', 'b', 1]}, "
        "'additionalProperties': true}",
        {"{'a':1,'b':2}", "{'b':2}"},
        {"{'long':1}", "{'c':1}"}},
       {"{'propertyNames': {'allOf': [{'pattern': '^a'}, {'maxLength': 2}]}}",
        {"{'ab':1}"},
        {"{'abc':1}", "{'b':1}"}},
       {"{'patternProperties': {'a': false, 'b': {}}, 'propertyNames': {'pattern': '^[^a]*$'}}",
        {"{'b':1}"},
        {"{'ab':1}", "{'a':1}"}},
       // A name that several patterns match has the schemas of all.
       {"{'patternProperties': {'a': {'minimum': 1}, 'b': {'type': 'integer', 'maximum': 5}}}",
        {"{'a':2.5,'b':-1,'ab':3}", "{'ba':1}"},
        {"{'ab':0}", "{'ab':1.5}", "{'a':0}", "{'b':6}"}},
       {"{'properties': {'ab': {'maximum': 5}, 'c': {}}, 'patternProperties': {'a': {'type': "
        "'integer'}}}",
        {"{'ab':5,'c':'x'}", "{'a':9}"},
        {"{'ab':6}", "{'ab':1.5}", "{'a':1.5}", "{'d':1}"}},
       // One that no value may have comes in no other way either.
       {"{'properties': {'a': false, 'b': {}}, 'additionalProperties': true}",
        {"{'b':1,'c':2}", "{'aa':1}", "{}"},
        {"{'a':1}", "{'b':1,'a':2}"}},
       {"{'properties': {'a': false}, 'patternProperties': {'a': {}}}", {"{'ab':1}"}, {"{'a':1}"}},
       {"{'propertyNames': false}", {"{}"}, {"{'a':1}"}}});
}

TEST(JsonSchema, HoldsFirstElements) {
  expect(
      {{"{'prefixItems': [{'type': 'integer'}, {'enum': ['a', 'b']}], 'items': {'type': 'null'}}",
        {"[]", "[1]", "[1,'a']", "[1, 'b', null,null]"},
        {"['a']", "[1,null]", "[1,'a',1]"}},
       {"{'prefixItems': [{'type': 'integer'}, {}]}", {"[1,[]]", "[]"}, {"[1,2,3]"}},
       {"{'prefixItems': [{'type': 'integer'}], 'items': false, 'minItems': 1}",
        {"[1]"},
        {"[]", "[1,2]"}},
       {"{'prefixItems': [{'type': 'integer'}], 'minItems': 2}",
        {"[1,'x']", "[1,2,3]"},
        {"[1]", "['x',1]"}},
       {"{'items': [{'type': 'integer'}, {'type': 'null'}], 'additionalItems': {'const': 7}}",
        {"[1,null,7,7]"},
        {"[1,7]", "[1,null,8]"}},
       {"{'prefixItems': [{}, false, {}]}", {"[1]"}, {"[1,2]"}},
       {"{'items': false}", {"[]"}, {"[1]"}},
       {"{'items': {}, 'uniqueItems': true, 'maxItems': 1}", {"[1]"}, {"[1,2]"}}});
}

TEST(JsonSchema, TakesOneOfWhatExcludesItself) {
  expect(
      {{"{'oneOf': [{'type': 'string'}, {'type': 'integer'}, {'type': 'null'}]}",
        {"'a'", "1", "null"},
        {"1.5", "[]"}},
       {"{'oneOf': [{'const': 'a'}, {'enum': ['b', 1]}, {'type': 'array'}]}",
        {"'a'", "'b'", "1", "[]"},
        {"'c'"}},
       {"{'oneOf': [{'$ref': '#/$defs/cat'}, {'$ref': '#/$defs/dog'}], '$defs': {'cat': {'type': "
        "'object', 'properties': {'kind': {'const': 'cat'}, 'lives': {'type': 'integer'}}, "
        "'required': ['kind', 'lives']}, 'dog': {'type': 'object', 'properties': {'kind': "
        "{'const': "
        "'dog'}}, 'required': ['kind']}}}",
        {"{'kind':'cat','lives':9}", "{'kind':'dog'}"},
        {"{'kind':'cat'}", "{'kind':'dog','lives':1}"}},
       {"{'$defs': {'base': {'type': 'object', 'properties': {'id': {'type': 'integer'}, 'kind': "
        "{'type': 'string'}}, 'required': ['id', 'kind']}}, 'oneOf': [{'allOf': [{'$ref': "
        "'#/$defs/base'}, {'properties': {'kind': {'const': 'circle'}, 'r': {}}, 'required': "
        "['r']}]}, {'allOf': [{'$ref': '#/$defs/base'}, {'properties': {'kind': {'const': "
        "'square'}}}]}]}",
        {"{'id':1,'kind':'circle','r':2}", "{'id':1,'kind':'square'}"},
        {"{'id':1,'kind':'circle'}", "{'id':1,'kind':'x'}", "{'kind':'square'}"}},
       {"{'oneOf': [{'type': 'object', 'properties': {'a': {}}, 'required': ['a'], "
        "'additionalProperties': false}, {'type': 'object', 'properties': {'b': {}}, 'required': "
        "['b'], 'additionalProperties': false}]}",
        {"{'a':1}", "{'b':1}"},
        {"{'a':1,'b':2}", "{}"}}});
}

TEST(JsonSchema, JoinsParts) {
  expect(
      {{"{'allOf': [{'properties': {'a': {'type': 'integer'}}, 'required': ['a']}, {'properties': "
        "{'b': {'type': 'string'}}, 'required': ['b']}]}",
        {"{'a':1,'b':'x'}"},
        {"{'a':1}", "{'b':'x'}", "{'a':1,'b':2}"}},
       {"{'type': 'object', 'properties': {'a': {}, 'b': {}}, 'anyOf': [{'required': ['a']}, "
        "{'required': ['b']}]}",
        {"{'a':1}", "{'b':1}", "{'a':1,'b':2}"},
        {"{}"}},
       {"{'allOf': [{'minimum': 1, 'type': ['number', 'string']}, {'maximum': 9, 'type': "
        "['integer', "
        "'null']}]}",
        {"1", "9"},
        {"0", "10", "1.5", "null", "'a'"}},
       {"{'allOf': [{'type': 'integer', 'multipleOf': 4}, {'multipleOf': 6}]}", {"12"}, {"4", "6"}},
       {"{'allOf': [{'type': 'number', 'multipleOf': 0.5}, {'multipleOf': 0.75}]}",
        {"1.5", "3", "4.5"},
        {"0.5", "0.75", "2"}},
       {"{'allOf': [{'type': 'number', 'multipleOf': 0.01}, {'multipleOf': 2}]}",
        {"2", "4"},
        {"0.01"}},
       {"{'allOf': [{'enum': [1, 2, 'a']}, {'enum': [2, 'a', 3]}], 'const': 2}",
        {"2"},
        {"'a'", "1"}},
       // What one part does not have is as its other members.
       {"{'allOf': [{'properties': {'a': {}}, 'additionalProperties': {'type': 'integer'}}, "
        "{'properties': {'b': {}, 'a': {'type': 'null'}}}]}",
        {"{'a':null,'b':1}"},
        {"{'b':'x'}", "{'a':1}"}},
       {"{'allOf': [{'properties': {'a': {}}, 'additionalProperties': false}, {'properties': {'b': "
        "{}}}]}",
        {"{'a':1}", "{}"},
        {"{'b':1}"}},
       {"{'$defs': {'base': {'type': 'object', 'properties': {'id': {'type': 'integer'}}, "
        "'required': "
        "['id']}}, '$ref': '#/$defs/base', 'properties': {'name': {'type': 'string'}}, "
        "'unevaluatedProperties': false}",
        {"{'id':1,'name':'x'}", "{'id':1}"},
        {"{'name':'x'}", "{'id':1,'z':1}"}},
       {"{'allOf': [true, {'items': {'minimum': 1}}, {'items': {'maximum': 2}, 'minItems': 1}, "
        "{'minItems': 2}]}",
        {"[1,2]"},
        {"[1]", "[0,1]", "[1,3]"}},
       {"{'anyOf': [{'type': 'string'}, {'type': 'object'}], 'type': ['object', 'null']}",
        {"{}"},
        {"'a'", "null"}},
       {"{'allOf': [{'anyOf': [{'minimum': 5}, {'maximum': 1}]}, {'oneOf': [{'type': 'integer'}, "
        "{'type': 'string'}]}]}",
        {"5", "1", "-3"},
        {"2", "5.5"}},
       // A part that leads back to where it stands.
       {"{'$defs': {'node': {'allOf': [{'$ref': '#/$defs/base'}, {'properties': {'next': {'anyOf': "
        "[{'$ref': '#/$defs/node'}, {'type': 'null'}]}}, 'required': ['next']}]}, 'base': {'type': "
        "'object', 'properties': {'v': {'type': 'integer'}}, 'required': ['v']}}, '$ref': "
        "'#/$defs/node'}",
        {"{'v':1,'next':null}", "{'v':1,'next':{'v':2,'next':null}}"},
        {"{'v':1}", "{'v':1,'next':{'next':null}}"}}});
}

TEST(JsonSchema, PartsHaveAnEnd) {
  const auto why = [](const std::string& text) -> std::string {
    try {
      compile_json_schema(parse_json(quoted(text), "a test", {.max_depth = 2000}), "f");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(why("{'allOf': [{'$ref': '#'}, {'type': 'object'}]}"), "");
  EXPECT_NE(why("{'anyOf': [{'$ref': '#'}, {'type': 'null'}], 'type': ['null', 'object']}"), "");
  // Lists of alternatives beside one another multiply.
  std::string lists;
  for (int i = 0; i < 30; ++i)
    lists += std::string(i > 0 ? "," : "") + "{'anyOf': [{'minimum': 1}, {'maximum': 5}]}";
  EXPECT_NE(why("{'allOf': [" + lists + "]}").find("64 together"), std::string::npos);
  std::string deep = "{}";
  for (int i = 0; i < 300; ++i) deep = "{'allOf': [" + deep + ", {}]}";
  EXPECT_NE(why(deep).find("too deep"), std::string::npos);
  std::string many;
  for (int i = 0; i < 200; ++i) {
    if (i > 0) many += ",";
    many += "{'type': 'object', 'properties': {'k': {'const': " + std::to_string(i) +
            "}}, 'required': ['k']}";
  }
  EXPECT_EQ(why("{'oneOf': [" + many + "]}"), "");
}

}  // namespace
}  // namespace saturate::serve
