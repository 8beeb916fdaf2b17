// SPDX-License-Identifier: Apache-2.0
#include "serve/generated_text.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer_json.h"

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

// What begins a call is a special token of some models, and no text otherwise.
TEST(GeneratedText, AMarkComesAsItsName) {
  Json file = parse_json(
      data::tokenizer_json(data::Tokenizer::bytes(), data::SentenceEnd::left_out), "a test");
  Json added = file["added_tokens"];
  Json mark = added[0];
  const int32_t id = 300;
  mark["id"] = id;
  mark["content"] = "[CALL]";
  mark["special"] = true;
  added.push_back(mark);
  file["added_tokens"] = added;
  const data::Tokenizer t = data::Tokenizer::parse(file.dump(), "tokenizer.json");
  std::vector<int32_t> ids;
  t.encode_text("so [CALL]{}", ids);
  ASSERT_EQ(std::ranges::count(ids, id), 1);
  const std::vector<std::string_view> call = {"no", "[CALL]"}, text = {"so"};
  GeneratedText without(t, {}, {}), with(t, {}, {}, call), other(t, {}, {}, text);
  EXPECT_EQ(pieces(without, ids), "so {}");
  EXPECT_EQ(pieces(with, ids), "so [CALL]{}");
  EXPECT_EQ(pieces(other, ids), "so {}");
  GeneratedText stopped(t, {}, {"LL]{"}, call);
  EXPECT_EQ(pieces(stopped, ids), "so [CA");
}

}  // namespace
}  // namespace saturate::serve
