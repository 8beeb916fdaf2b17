// SPDX-License-Identifier: Apache-2.0
// A JSON Schema as a graph of what values may be; the part of JSON Schema (2020-12) that a value can be
// held to while it is written.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/json/pattern.h"

namespace saturate::serve {

// Deepest nesting of objects and arrays; every reader of JSON takes so much.
constexpr int32_t kMostJsonLevels = 64;

struct JsonSchema {
  struct Property {
    std::string name;  // as JSON spells it behind the first quote, the last one with it
    int32_t node;
    bool required;
  };
  // Members whose names a pattern allows; no name is of two of these, or of a property.
  struct Names {
    int32_t pattern, node;
  };
  struct Node {
    enum class Kind : uint8_t { any_of, object, array, string, number, integer, literal, prefixed };
    Kind kind = Kind::any_of;
    std::vector<int32_t> alternatives = {};  // any_of
    std::vector<Property> properties = {};   // object, in the order in which they are written
    int32_t rest = -1;                // object: of members with other names; -1: there are none
    std::vector<Names> names = {};    // object: instead of rest
    std::vector<int32_t> first = {};  // array: the first elements,
    int32_t items = -1;  // and those behind them; -1: there are none; prefixed: the value
    int32_t least = 0,
            most = -1;  // array: items, object: members, string: characters; -1: any number
    // literal: compact JSON of each value, sorted; prefixed: one, what stands before the value and is no JSON, perhaps
    // with the bytes of token_bytes.h's marks
    std::vector<std::string> texts = {};
    int32_t pattern = -1;  // string, number and integer: the one of `patterns` that it is held to
    int32_t levels = 0;    // of nesting that every value of it has at least
  };
  std::vector<Node> nodes;
  std::vector<Dfa> patterns;
  int32_t root = 0;
  // No JSON: the texts of the root, or what its pattern matches, are all that is written, without quotes and spaces.
  bool is_text = false;
};

// Taken: the keywords of the table in docs/guide/serve.md. An object with properties has no others unless
// additionalProperties says so, and a list with prefixItems no more unless items does.
//
// Errors: invalid_argument for everything else, naming the place ("<where>.properties.age.minimum"), and
// for a schema that no finite value meets.
// `budget`: of the patterns of several schemas together; null: each its own.
JsonSchema compile_json_schema(const Json& schema, const std::string& where,
                               PatternBudget* budget = nullptr);

// Appends the nodes and patterns of `from`; the number of its root there.
int32_t append_schema(JsonSchema& to, const JsonSchema& from);

}  // namespace saturate::serve
