// SPDX-License-Identifier: Apache-2.0
#include "serve/generated_text.h"

#include <gtest/gtest.h>

#include "base/utf8.h"

namespace saturate::serve {
namespace {

// Every piece on its own is UTF-8, if the whole is.
std::string pieces(GeneratedText& text, std::span<const int32_t> ids) {
  std::string all;
  for (const int32_t id : ids) {
    const std::string piece = text.add(id);
    EXPECT_EQ(find_invalid_utf8(piece), std::string::npos);
    all += piece;
  }
  return all + text.finish();
}

TEST(GeneratedText, GivesWholeCharactersAndAllOfThem) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  const std::string want = "a\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80.";
  std::vector<int32_t> ids, prompt;
  bytes.encode(want, ids);
  bytes.encode("before", prompt);
  GeneratedText text(bytes, prompt, {});
  EXPECT_EQ(pieces(text, ids), want);
  EXPECT_FALSE(text.stopped());
}

TEST(GeneratedText, WhatIsNoUtf8ComesAtTheEnd) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  std::vector<int32_t> ids;
  bytes.encode("x\xF0\x9F", ids);
  GeneratedText text(bytes, {}, {});
  std::string all;
  for (const int32_t id : ids) all += text.add(id);
  EXPECT_EQ(all, "x");
  EXPECT_EQ(text.finish(), "\xF0\x9F");
}

TEST(GeneratedText, EndsBeforeTheFirstStopString) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  const struct {
    const char *text, *want;
    bool stopped;
  } cases[] = {{"one END two", "one ", true}, {"one ENx EN", "one ENx EN", false},
               {"one\n\ntwo", "one", true},   {"ENEND", "EN", true},
               {"one\n", "one\n", false},     {"END", "", true},
               {"a\n\nEND", "a", true}};
  for (const auto& c : cases) {
    std::vector<int32_t> ids;
    bytes.encode(c.text, ids);
    GeneratedText text(bytes, {}, {"END", "\n\n"});
    EXPECT_EQ(pieces(text, ids), c.want) << c.text;
    EXPECT_EQ(text.stopped(), c.stopped) << c.text;
  }
}

}  // namespace
}  // namespace saturate::serve
