// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate {
namespace {

std::string error_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "here", limits);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(Json, WritesWhatItReads) {
  const Json json = {{"text", "a\"\\\n\x01 é"},
                     {"whole", std::numeric_limits<int64_t>::min()},
                     {"real", 0.1f},
                     {"yes", true},
                     {"none", nullptr},
                     {"absent", std::optional<double>()},
                     {"list", Json::Array{1, "two", Json::Array{}}},
                     {"empty", Json::Object{}}};
  EXPECT_EQ(parse_json(json.dump(), "here"), json);
  const std::string text = json.dump(2);
  EXPECT_EQ(parse_json(text, "here").dump(2), text);
  EXPECT_NE(text.find("\"real\": 0.1,"), std::string::npos) << text;
  EXPECT_EQ(*parse_json(text, "here").find("text")->if_string(), "a\"\\\n\x01 é");
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_EQ(Json(-0.0).dump(), "-0.0");
  EXPECT_EQ(Json(10000.0f).dump(), "10000.0");
}

TEST(Json, IndentsObjectsAndKeepsPlainListsOnOneLine) {
  Json json = {{"a", Json::Array{1, 2}}, {"b", Json::Array{Json{{"c", 1}}, Json::Object{}}}};
  json["b"].push_back("x") = 1.5;
  json["b"].push_back("\xC3(");
  json["d"]["e"] = nullptr;
  EXPECT_EQ(json.dump(1),
            "{\n \"a\": [1, 2],\n \"b\": [\n  {\n   \"c\": 1\n  },\n  {},\n  1.5,\n  "
            "\"\uFFFD(\"\n ],\n \"d\": {\n  \"e\": null\n }\n}");
  EXPECT_EQ(json.dump(), "{\"a\":[1,2],\"b\":[{\"c\":1},{},1.5,\"\uFFFD(\"],\"d\":{\"e\":null}}");
}

TEST(Json, WhatIsAbsentReadsAsNull) {
  const Json json = {{"list", Json::Array{1.0, Json{{"x", "y"}}}}};
  EXPECT_EQ(json["list"][0], 1);
  EXPECT_EQ(json["list"][1]["x"], "y");
  EXPECT_TRUE(json["list"][2].is_null() && json["list"]["x"].is_null() &&
              json["none"][0].is_null());
  EXPECT_EQ(json["list"].size(), 2u);
  EXPECT_FALSE(json["list"] == (Json::Array{1, 2}));
}

TEST(Json, TheLastMemberOfANameCountsWhereNamesMayRepeat) {
  JsonLimits limits;
  EXPECT_FALSE(try_parse_json(R"({"a":1,"a":2})", limits));
  limits.unique_names = false;
  const Json json = try_parse_json(R"({"a":1,"a":2})", limits).value();
  EXPECT_EQ(json["a"], 2);
}

TEST(Json, RefusesWhatIsNotJson) {
  for (const char* text : {"", "{", "{\"a\":1,}", "[1 2]", "nul", "{\"a\":1}x", "\"\xff\"", "1e999",
                           "{\"a\":{\"b\":1,\"c\":2,\"b\":3}}"}) {
    EXPECT_NE(error_of(text).find("here: "), std::string::npos) << text;
  }
  EXPECT_NE(error_of("{\"a\":1,\"a\":2}").find("\"a\" occurs twice"), std::string::npos);
}

TEST(Json, HoldsItsLimits) {
  JsonLimits limits;
  limits.max_depth = 2;
  limits.max_values = 4;
  limits.max_bytes = 40;
  EXPECT_EQ(error_of("[[1,2]]", limits), "");
  EXPECT_NE(error_of("[[[1]]]", limits).find("deeper than 2"), std::string::npos);
  EXPECT_NE(error_of("[1,2,3,4,5]", limits).find("more than 4 values"), std::string::npos);
  EXPECT_NE(error_of(std::string(41, ' '), limits).find("larger than 40"), std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("deeper than"), std::string::npos);
}

TEST(Json, NamesFileAndFieldOfAWrongType) {
  const Json json = parse_json(R"({"heads": "8", "extra": 1})", "config.json");
  JsonFields fields(json, "model", "config.json");
  try {
    fields.integer("heads");
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "[model] config.json: heads is \"8\": an integer is needed");
  }
  EXPECT_THROW(fields.integer("absent"), Error);
  EXPECT_EQ(fields.integer_or("absent", 7), 7);
  EXPECT_THROW(fields.reject_others(), Error);
  EXPECT_EQ(fields.integer("extra"), 1);
  fields.reject_others();
}

TEST(Json, MissingFileIsAnIoError) {
  try {
    read_json_file("/nonexistent.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::io);
  }
}

}  // namespace
}  // namespace saturate
