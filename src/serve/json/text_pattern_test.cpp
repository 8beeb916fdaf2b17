// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "serve/json/automaton_test.h"
#include "serve/json/text_schema.h"

namespace saturate::serve {
namespace {

bool takes(const std::string& pattern, std::string_view text) {
  return takes(text_of_pattern(pattern, "f"), text);
}

std::string why_not(const std::string& pattern) {
  try {
    text_of_pattern(pattern, "regex");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "";
}

std::vector<std::string> short_texts(const std::string& letters, size_t longest) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < all.size() && all[i].size() < longest; ++i)
    for (const char c : letters) all.push_back(all[i] + c);
  return all;
}

// Quotes, backslashes and control characters are characters as any other.
TEST(TextPattern, TakesWhatTheWholeOfStdRegexTakes) {
  const std::vector<std::string> texts = short_texts("aB1 \"\\\n", 4);
  for (const char* pattern : {"",
                              "a",
                              "a|B",
                              "^a",
                              "a$",
                              "^a|B$",
                              "^(a|B)$",
                              "(^a|B)1",
                              "(a$|B)1",
                              "a(^B|1)",
                              "(^a)*B",
                              "(^|a)B",
                              "B($|a)",
                              "^^a$$",
                              "a*$",
                              "$a*",
                              "(a|$|B)*",
                              "(a*)*$",
                              "(a|B|)+1",
                              "a{2}",
                              "a{1,2}B{0,2}",
                              "\\\"",
                              "\"",
                              "\\\\",
                              "\\\\.",
                              "[^a]",
                              "[\"\\\\]+",
                              "[^\"]*",
                              "\"[^\"]*\"",
                              "\\s",
                              "\\S+",
                              "\\d\\D",
                              "\\w+",
                              "\\W+",
                              "a\\n",
                              "[\\n ]",
                              "(?:a|B){1,3}",
                              "[a-zB-]+",
                              "\\x41|\\x61",
                              "a+?B*?"}) {
    const std::regex wanted(pattern);
    JsonAutomaton automaton(text_of_pattern(pattern, "f"));
    for (const std::string& text : texts)
      EXPECT_EQ(takes(automaton, text), std::regex_match(text, wanted))
          << pattern << " <- " << text;
  }
}

// What Python's re has and ECMA-262 has not.
TEST(TextPattern, ReadsWhatPythonReads) {
  const struct {
    const char* pattern;
    std::vector<const char*> those, not_those;
  } cases[] = {
      {R"(\{"name": "[a-z]+", "age": [0-9]{1,2}})", {R"({"name": "ada", "age": 36})"}, {"{}"}},
      {R"({"a": {}})", {R"({"a": {}})"}, {R"("a": {})"}},
      {"a{,2}", {"", "a", "aa"}, {"aaa"}},
      {"a{,}", {"", "aaa"}, {"b"}},
      {"a{x}|b{1", {"a{x}", "b{1"}, {"a", "b"}},
      {"a{}", {"a{}"}, {"a", ""}},
      {"[]a]+", {"]a"}, {"b"}},
      {"[^]a]", {"b"}, {"]", "a"}},
      {"(?P<year>\\d{4})-(?<month>\\d\\d)", {"2026-12"}, {"2026"}},
      {"\\Aa\\Z|\\Ab\\z", {"a", "b"}, {"ab"}},
      {"(?i)yes|NO", {"yes", "YES", "yEs", "no"}, {"y"}},
      {"(?i:a[b-d])e", {"ABe", "ade"}, {"ABE"}},
      {"(?i)[^a]", {"b"}, {"a", "A"}},
      {"(?i)a(?-i:b)c", {"AbC"}, {"ABC"}},
      {"((?i)a)b", {"Ab", "ab"}, {"AB"}},
      {"a.b",
       {"a b", "a\rb",
        "a\xE2\x80\xA8"
        "b"},
       {"a\nb"}},
      {"(?s)a.b", {"a\nb"}, {"ab"}},
      {"a(?#nothing)b", {"ab"}, {"a"}},
      {"\\101\\0\\x7e", {}, {"A~"}},
      {"\\101\\012\\x{7e}", {"A\n~"}, {}},
      {"\\U0001F600|\\u00e9|\\a", {"\xF0\x9F\x98\x80", "\xC3\xA9", "\a"}, {"e"}},
      {"\\-\\ \\/\\\"\\'\\#\\\xC3\xA9", {"- /\"'#\xC3\xA9"}, {}},
      {"\\e\\cJ", {"\x1B\n"}, {}},     // of others
      {"\\d+", {"12"}, {"\xD9\xA1"}},  // digits of ASCII
      {"\\s", {" ", "\t"}, {"\xC2\xA0"}},
      {"\\W", {"\xC3\xA9", "."}, {"e", "_"}},
      {"[\\w-.]+", {"a-b.c"}, {"a b"}},
      {"caf\xC3\xA9{2}", {"caf\xC3\xA9\xC3\xA9"}, {"caf\xC3\xA9"}},
  };
  for (const auto& c : cases) {
    JsonAutomaton automaton(text_of_pattern(c.pattern, "f"));
    for (const char* text : c.those) EXPECT_TRUE(takes(automaton, text)) << c.pattern << text;
    for (const char* text : c.not_those) EXPECT_FALSE(takes(automaton, text)) << c.pattern << text;
  }
  for (const char* bytes : {"\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80", "\xFF", "\xC3"})
    EXPECT_FALSE(takes("(?s).", bytes)) << bytes;
}

TEST(TextPattern, RefusesWithThePlace) {
  for (const auto& [pattern, message] : std::vector<std::pair<std::string, std::string>>{
           {"a(?=b)", "regex: at character 2, \"(?=b)\": look-ahead"},
           {"(?P<a>b)(?P=a)", "regex: at character 9, \"(?P=a)\": references"},
           {"(a)\\1", "references"},
           {"\\bword\\b", "boundaries of words"},
           {"(?m)^a$", "this kind of group is not supported; write (?:...), (?i) or (?s)"},
           {"(?>a)", "this kind of group"},
           {"(?P>a)", "this kind of group"},
           {"\\q", "this escape is not known"},
           {"\\U00110000", "no character has this number"},
           {"{2}", "there is nothing to repeat"},
           {"^*", "there is nothing to repeat"},
           {"a|*", "there is nothing to repeat"},
           {"a{2}{3}", "it is repeated twice"},
           {"a*+", "it is repeated twice"},
           {"(?#a", "the remark has no"},
           {"(?i", "this kind of group"},
           {"a)", "a \")\" without"},
           {"[]", "the class has no"},
           {"a^b", "no text matches it"},
           {"a$b", "no text matches it"},
           {"[^\\s\\S]", "no text matches it"}})
    EXPECT_NE(why_not(pattern).find(message), std::string::npos) << pattern << why_not(pattern);
}

// Whoever asks writes the pattern.
TEST(TextPattern, WhatTakesTooLongIsRefusedSoon) {
  const auto begun = std::chrono::steady_clock::now();
  for (const char* pattern : {"(a|b)*a(a|b){20}", "(((a{999}){999}){999}){999}",
                              "(((){999}){999}){999}", "((a?){4096}){4096}", "(.*a.{5}){30}",
                              "(?:a|b)*a(?:a|b){14}", "\\W{4096}\\W{4096}", "((a|aa)+)+{1}b"})
    EXPECT_NE(why_not(pattern), "") << pattern;
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
  // What a long text takes is no bomb.
  EXPECT_TRUE(takes(".{1,1000}", std::string(1000, 'x')));
  EXPECT_FALSE(takes(".{1,1000}", std::string(1001, 'x')));
  EXPECT_TRUE(takes("(a+)+$", "aaa"));
}

TEST(TextOfChoices, IsOneOfThem) {
  JsonAutomaton automaton(
      text_of_choices({"no", "not \"here\"", "yes", "no", "\xC3\xA9t\xC3\xA9"}));
  for (const char* text : {"no", "not \"here\"", "yes", "\xC3\xA9t\xC3\xA9"})
    EXPECT_TRUE(takes(automaton, text)) << text;
  for (const char* text : {"", "n", "not", "\"no\"", " no", "no ", "yesno", "\xC3\xA9t"})
    EXPECT_FALSE(takes(automaton, text)) << text;
  EXPECT_TRUE(takes(text_of_choices({"", "a"}), ""));
  EXPECT_TRUE(takes(text_of_choices({"", "a"}), "a"));
}

}  // namespace
}  // namespace saturate::serve
