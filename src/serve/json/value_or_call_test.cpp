// SPDX-License-Identifier: Apache-2.0
#include "serve/json/value_or_call.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace saturate::serve {
namespace {

constexpr int32_t kEnd = 0, kMark = 1;

// Every byte alone behind an end and a mark, which are no text, and some that lie across what matters.
std::shared_ptr<const TokenBytes> vocabulary() {
  std::vector<std::string> bytes = {"", ""};
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* text : {"<c", "all>", "l>{", "[\"", "  "}) bytes.emplace_back(text);
  return std::make_shared<const TokenBytes>(bytes);
}

struct Held {
  std::shared_ptr<const TokenBytes> tokens = vocabulary();
  ValueOrCall constraint;

  explicit Held(const char* mark, std::optional<int32_t> mark_id = kMark)
      : constraint(
            of(R"({"type":"array","items":{"enum":["a","<"]},"maxItems":2})"),
            of(R"({"type":"object","properties":{"b":{"type":"boolean"}},"required":["b"]})"), mark,
            mark_id, tokens) {}

  std::shared_ptr<JsonConstraint> of(const char* schema) const {
    return std::make_shared<JsonConstraint>(
        compile_json_schema(parse_json(schema, "a test"), "schema"), tokens, std::vector{kEnd});
  }
  bool may(int32_t state, int32_t id) {
    const auto mask = constraint.allowed(state);
    return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) != 0;
  }
  // Tokens of `text` by their bytes, each the longest one that may come, "\1" the mark; then an end.
  bool takes(std::string_view text) {
    int32_t state = constraint.start();
    while (!text.empty()) {
      int32_t best = -1;
      size_t length = 0;
      for (int32_t id = 2; id < static_cast<int32_t>(tokens->size()); ++id)
        if (text.starts_with(tokens->of(id)) && tokens->of(id).size() > length && may(state, id))
          best = id, length = tokens->of(id).size();
      if (text[0] == '\1' && may(state, kMark)) best = kMark, length = 1;
      if (best < 0) return false;
      state = constraint.next(state, best);
      text.remove_prefix(length);
    }
    return may(state, kEnd);
  }
};

TEST(ValueOrCall, IsOneOfTheTwo) {
  Held held("<call>");
  for (const char* text : {R"([])", R"(["a","<"])", R"(<call>{"b":true})",
                           "  <call>\n{\"b\":false}", "\1{\"b\":true}", " \1 {\"b\":true}"})
    EXPECT_TRUE(held.takes(text)) << text;
  for (const char* text : {"", R"({"b":true})", "<call>[]", "<call>", "<ca", "\1", "\1[]",
                           "\1\1{\"b\":true}", "<call><call>{\"b\":true}", "[]<call>{\"b\":true}",
                           "<c all>{\"b\":true}", R"(["<call>"])", "[\1]"})
    EXPECT_FALSE(held.takes(text)) << text;
}

TEST(ValueOrCall, ItsMarkMayBeTextAloneOrNone) {
  Held spelt("<call>", std::nullopt);
  EXPECT_TRUE(spelt.takes(R"(<call>{"b":true})"));
  EXPECT_FALSE(spelt.takes("\1{\"b\":true}"));
  // A list of calls that begins as a value may: both are followed until they part.
  Held bracket("[C]", std::nullopt);
  EXPECT_TRUE(bracket.takes(R"(["a"])"));
  EXPECT_TRUE(bracket.takes(R"([C]{"b":true})"));
  EXPECT_FALSE(bracket.takes(R"(["C]{"b":true})"));
  Held without("", std::nullopt);
  EXPECT_TRUE(without.takes(R"(["a"])"));
  EXPECT_TRUE(without.takes(R"( {"b":true})"));
  EXPECT_FALSE(without.takes(R"({"b":"a"})"));
}

}  // namespace
}  // namespace saturate::serve
