// SPDX-License-Identifier: Apache-2.0
#include "observe/read/json_tokens.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace saturate::observe {
namespace {

// Hands out a few bytes at a time, so that tokens cross the ends of buffers.
class DripInput : public Input {
 public:
  DripInput(std::string text, size_t piece)
      : Input("drip"), text_(std::move(text)), piece_(piece) {}
  size_t read(char* dst, size_t bytes) override {
    const size_t n = std::min({bytes, piece_, text_.size() - at_});
    text_.copy(dst, n, at_);
    at_ += n;
    return n;
  }

 private:
  std::string text_;
  size_t piece_, at_ = 0;
};

// The tokens as one line.
std::string tokens(const std::string& text, size_t piece) {
  DripInput input(text, piece);
  JsonTokens json(input);
  std::string line;
  for (;;) {
    switch (json.next()) {
      case JsonToken::begin_object:
        line += "{ ";
        break;
      case JsonToken::end_object:
        line += "} ";
        break;
      case JsonToken::begin_array:
        line += "[ ";
        break;
      case JsonToken::end_array:
        line += "] ";
        break;
      case JsonToken::key:
        line += "k:" + std::string(json.text()) + " ";
        break;
      case JsonToken::string:
        line += "s:" + std::string(json.text()) + " ";
        break;
      case JsonToken::number:
        line += "n:" + std::string(json.text()) + " ";
        break;
      case JsonToken::literal:
        line += "l:" + std::string(json.text()) + " ";
        break;
      case JsonToken::end:
        return line;
    }
  }
}

TEST(JsonTokens, ReadsAllKindsHoweverTheBytesArrive) {
  const std::string text =
      R"( {"a" : [1, -2.50e+3 ,true,null,"x\"\\\u00e9\n"], "long key" :{}, "n":[],"o":NaN} )";
  const std::string expected =
      "{ k:a [ n:1 n:-2.50e+3 l:true l:null s:x\"\\\xC3\xA9\n ] k:long key { } k:n [ ] k:o n:NaN "
      "} ";
  for (const size_t piece : {1, 2, 3, 7, 1000}) EXPECT_EQ(tokens(text, piece), expected) << piece;
}

TEST(JsonTokens, RefusesWithTheOffset) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"", "byte 0 (decompressed): the file ends before"},
      {"[1,", "byte 3 (decompressed): the file ends before"},
      {"[1 2]", "byte 3 (decompressed): ','"},
      {"{\"a\" 1}", "byte 1 (decompressed): ':' was expected"},
      {"{1:2}", "byte 1 (decompressed): a key"},
      {"[01]", "byte 1 (decompressed): not a number"},
      {"[1.]", "not a number"},
      {"[-]", "not a number"},
      {"[tru]", "a value was expected"},
      {"[\"abc", "ends inside a string"},
      {"[\"\\q\"]", "unknown escape"},
      {"[\"\\u12g4\"]", "four hex digits"},
      {"[}", "a value was expected"},
      {"[1}", "byte 2 (decompressed): a closing bracket"},
      {"{} {}", "byte 3 (decompressed): text after the end"},
      {"[1,]", "a value was expected"},
      {"{\"a\":1,}", "a key in quotes"},
  };
  for (const auto& c : cases) {
    for (const size_t piece : {1, 100}) {
      try {
        tokens(c.text, piece);
        FAIL() << c.text;
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(c.says), std::string::npos)
            << c.text << ": " << e.what();
      }
    }
  }
  EXPECT_THROW(tokens(std::string(65, '[') + std::string(65, ']'), 10), Error);
  EXPECT_NO_THROW(tokens(std::string(64, '[') + std::string(64, ']'), 10));
  EXPECT_THROW(tokens(std::string(600, '1'), 10), Error);
}

TEST(JsonTokens, LongStringsAreCutAndSkippedInConstantMemory) {
  DripInput input("[\"" + std::string(1 << 20, 'a') + "\", [[1],{\"b\":[2]}], 7]", 1000);
  JsonTokens json(input);
  EXPECT_EQ(json.next(), JsonToken::begin_array);
  EXPECT_EQ(json.next(), JsonToken::string);
  EXPECT_EQ(json.text(), std::string(4096, 'a'));
  json.skip(json.next());
  EXPECT_EQ(json.next(), JsonToken::number);
  EXPECT_EQ(json.text(), "7");
}

}  // namespace
}  // namespace saturate::observe
