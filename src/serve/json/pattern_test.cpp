// SPDX-License-Identifier: Apache-2.0
#include "serve/json/pattern.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"

namespace saturate::serve {
namespace {

bool takes(const Dfa& dfa, std::string_view bytes) {
  int16_t state = 0;
  for (const char byte : bytes) {
    state = dfa.states[static_cast<size_t>(state)].next[static_cast<unsigned char>(byte)];
    if (state < 0) return false;
  }
  return dfa.states[static_cast<size_t>(state)].accepts;
}
bool takes(const std::string& pattern, std::string_view bytes) {
  return takes(compile_pattern(pattern, "f"), bytes);
}

// As JSON has it between its quotes.
std::string spelled(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

// Whether some bytes lead from each state to an end.
bool all_end(const Dfa& dfa) {
  std::vector<char> ends(dfa.states.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = 0; i < ends.size(); ++i) {
      const Dfa::State& s = dfa.states[i];
      const bool end = s.accepts || std::ranges::any_of(s.next, [&](int16_t to) {
                         return to >= 0 && ends[static_cast<size_t>(to)] != 0;
                       });
      changed = changed || (end && ends[i] == 0);
      if (end) ends[i] = 1;
    }
  }
  return std::ranges::count(ends, 0) == 0;
}

std::vector<std::string> short_texts(const std::string& letters, size_t longest) {
  std::vector<std::string> all = {""};
  for (size_t i = 0; i < all.size() && all[i].size() < longest; ++i)
    for (const char c : letters) all.push_back(all[i] + c);
  return all;
}

TEST(JsonPattern, TakesWhatStdRegexTakes) {
  const std::vector<std::string> texts = short_texts("ab1 -_\"\\", 5);
  for (const char* pattern : {"",
                              "a",
                              "^",
                              "$",
                              "^$",
                              "^a",
                              "a$",
                              "^ab?$",
                              "ab|ba",
                              "^ab|ba$",
                              "^(a|b)*1$",
                              "^(?:ab|a)(?:b1|1)$",
                              "^(a*)*$",
                              "^(a|b*)+1$",
                              "^(|a)+b$",
                              "^a{2}$",
                              "^a{1,}b{0,2}$",
                              "^(ab){1,2}$",
                              "^(a{1,2}b?){2,3}$",
                              "^(a+?b){0,1}1*?$",
                              "a{3}",
                              "(a|b)a(a|b)",
                              "^(a|b)*a(a|b){2}$",
                              "^\\d+$",
                              "\\D\\d",
                              "^\\w+$",
                              "\\W$",
                              "^\\s",
                              "^\\S*$",
                              "^[ab]+$",
                              "^[^ab]+$",
                              "^[^a]b[^1]*$",
                              "^[a-b1]*-$",
                              "[-a]1",
                              "[a-]1",
                              "^[\\w-]+$",
                              "^[\\d\\s]+$",
                              "^[^\\w]+$",
                              "^[\\]\\\\]$",
                              "^.{2,3}$",
                              "^.*1.*$",
                              "\"",
                              "\\\\",
                              "^\"[^\"]*\"$",
                              "^\\\\.\\\\?$",
                              "^[\"-b]*$",
                              "^\\x61\\u0062$",
                              "^(?:a(?:b(?:1)?)?)?$",
                              "^((a)|(b)|)((1))$",
                              "[^]",
                              "a[]|b"}) {
    SCOPED_TRACE(pattern);
    const Dfa dfa = compile_pattern(pattern, "f");
    EXPECT_TRUE(all_end(dfa));
    const std::regex reference(pattern, std::regex::ECMAScript);
    for (const std::string& text : texts)
      ASSERT_EQ(takes(dfa, spelled(text)), std::regex_search(text, reference)) << text;
  }
}

TEST(JsonPattern, HoldsLengthsToo) {
  const std::vector<std::string> texts = short_texts("ab\"", 7);
  for (const char* pattern : {"", "ab", "^a*b*$", "^(ab)*$", "\"$", "^[^a]+|a$"})
    for (const auto& [least, most] : {std::pair{0, 0}, {0, 3}, {2, -1}, {2, 4}, {5, 5}}) {
      SCOPED_TRACE(pattern);
      const std::regex reference(pattern, std::regex::ECMAScript);
      const auto meets = [&, low = least, high = most](const std::string& text) {
        return std::ssize(text) >= low && (high < 0 || std::ssize(text) <= high) &&
               std::regex_search(text, reference);
      };
      if (std::ranges::none_of(texts, meets)) {
        EXPECT_THROW(compile_pattern(pattern, "f", least, most), Error);
        continue;
      }
      const Dfa dfa = compile_pattern(pattern, "f", least, most);
      EXPECT_TRUE(all_end(dfa));
      for (const std::string& text : texts)
        ASSERT_EQ(takes(dfa, spelled(text)), meets(text)) << text << " " << least << " " << most;
    }
  // Characters count, not bytes.
  const Dfa two = compile_pattern("", "f", 2, 2);
  EXPECT_TRUE(takes(two, "\xC3\xA9\xF0\x9F\x98\x80"));
  EXPECT_FALSE(takes(two, "\xF0\x9F\x98\x80"));
  EXPECT_TRUE(takes(two, "\\\"\\\\"));
}

TEST(JsonPattern, ReadsCharactersOfUnicode) {
  EXPECT_TRUE(takes("^.$", "\xF0\x9F\x98\x80"));
  EXPECT_FALSE(takes("^.$", "\xE2\x80\xA8"));  // the end of a line
  EXPECT_TRUE(takes("^[^a]$", "\xE2\x80\xA8"));
  EXPECT_TRUE(takes("^\xC3\xA9+$", "\xC3\xA9\xC3\xA9"));
  EXPECT_FALSE(takes("^\xC3\xA9+$", "\xC3\xA8"));
  EXPECT_TRUE(takes("^\\ud83d\\ude00\\u{1F600}$", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80"));
  EXPECT_TRUE(takes("^\\s$", "\xE3\x80\x80"));
  EXPECT_FALSE(takes("^\\S$", "\xE3\x80\x80"));
  EXPECT_TRUE(takes("^(?<year>\\d{4})\\/\\-$", "2026/-"));
  // Every character of a range, and none beside it.
  for (const auto& [low, high] : {std::pair<char32_t, char32_t>{0x7E, 0x81},
                                  {0x7A0, 0x8C1},
                                  {0xFFD, 0x2043},
                                  {0xD7F0, 0xE003},
                                  {0xFFF1, 0x1004E},
                                  {0x3FFFE, 0x41005},
                                  {0x10FFF0, 0x10FFFF}}) {
    const Dfa dfa =
        compile_pattern(fmt::format("^[\\u{{{:x}}}-\\u{{{:x}}}]$", static_cast<uint32_t>(low),
                                    static_cast<uint32_t>(high)),
                        "f");
    for (char32_t c = low - 9; c <= std::min<char32_t>(high + 9, 0x10FFFF); ++c) {
      if (c >= 0xD800 && c <= 0xDFFF) continue;
      std::string text;
      append_utf8(text, c);
      ASSERT_EQ(takes(dfa, text), c >= low && c <= high) << static_cast<uint32_t>(c);
    }
  }
  for (const char* bytes :
       {"\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80", "\n", "\"", "\\n", "\\"})
    EXPECT_FALSE(takes("^[^]*$", bytes)) << bytes;
}

TEST(JsonPattern, RefusesWithThePlace) {
  const std::string deep(101, '(');
  for (const auto& [pattern, message] : std::vector<std::pair<std::string, std::string>>{
           {"a(?=b)", "f: at character 2, \"(?=b)\": look-ahead"},
           {"(?!b)", "f: at character 1, \"(?!b)\": look-ahead"},
           {"a(?<=b)", "look-behind"},
           {"(?i)a", "f: at character 1, \"(?i)a\": this kind of group"},
           {"(a)\\1", "f: at character 4, \"\\1\": references"},
           {"\\bword", "f: at character 1, \"\\bword\": boundaries of words"},
           {"\\p{L}", "f: at character 1, \"\\p{L}\": properties"},
           {"\\a", "f: at character 1, \"\\a\": this escape is not known"},
           {"\\Z", "this escape is not known"},
           {"\\x1", "f: at character 1, \"\\x1\": it needs hexadecimal digits"},
           {"\\u{110000}", "no character has this number"},
           {"a^b", "f: at character 2, \"^b\": \"^\" is taken at the beginning"},
           {"a$b", "f: at character 2, \"$b\": \"$\" is taken at the end"},
           {"(a$)", "\"$\" is taken at the end"},
           {"(^a)", "\"^\" is taken at the beginning"},
           {"(a", "f: at character 1, \"(a\": the group has no \")\""},
           {"a)", "f: at character 2, \")\": a \")\" without"},
           {"[a", "f: at character 1, \"[a\": the class has no \"]\""},
           {"[b-a]", "f: at character 2, \"b-a]\": its ends are in the wrong order"},
           {"[a-\\d]", "a range ends with one character"},
           {"*", "f: at character 1, \"*\": there is nothing to repeat"},
           {"a**", "f: at character 1, \"a**\": it is repeated twice"},
           {"a{2,1}", "f: at character 2, \"{2,1}\": its numbers"},
           {"a{x}", "f: at character 2, \"{x}\": a count is"},
           {"a{5000}", "a count above 4096"},
           {"a\\", "f: at character 2, \"\\\": there is nothing behind"},
           {deep, "f: at character 101, \"(\": groups lie deeper"},
           {"^(?:a|b)*a(?:a|b){14}$", "f: it has more than 4096 states"},
           {"(((a{999}){999}){999}){999}", "f: it has more than 4096 states"},
           {"(((){999}){999}){999}", "f: compiling the patterns takes too long"},
           {"^\\n$", "f: no text meets it"},
           {"^[]$", "f: no text meets it"}}) {
    try {
      compile_pattern(pattern, "f");
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_NE(std::string_view(e.what()).find(message), std::string_view::npos) << e.what();
      EXPECT_EQ(e.code(), Errc::invalid_argument);
    }
  }
}

// What a pattern keeps anyway is not counted; what it does not, is.
TEST(JsonPattern, ALongestTextThatIsShorterCostsNothing) {
  const std::string mail = format_pattern("email");
  EXPECT_EQ(compile_pattern(mail, "f", 0, 254).states.size(),
            compile_pattern(mail, "f").states.size());
  EXPECT_EQ(compile_pattern("^(?:\u00e9|\"){3}$", "f", 0, 3).states.size(),
            compile_pattern("^(?:\u00e9|\"){3}$", "f").states.size());
  EXPECT_TRUE(takes("^a{1,5}$", "aaaaa"));
  EXPECT_FALSE(takes(compile_pattern("^a{1,5}$", "f", 0, 4), "aaaaa"));
  EXPECT_TRUE(takes(compile_pattern("^a{1,5}$", "f", 0, 5), "aaaaa"));
}

// However many patterns a request has, compiling them takes so much together.
TEST(JsonPattern, ManyTogetherAreRefusedWhereTheyTakeTooLong) {
  PatternBudget budget;
  int compiled = 0;
  try {
    for (; compiled < 10'000; ++compiled)
      compile_pattern(fmt::format("^(?:[a-z]{{1,40}}-){{0,{}}}x$", 20 + compiled % 20), "f", 0, -1,
                      &budget);
    ADD_FAILURE() << "ten thousand were compiled";
  } catch (const Error& e) {
    EXPECT_NE(std::string_view(e.what()).find("takes too long"), std::string_view::npos)
        << e.what();
  }
  EXPECT_GT(compiled, 10);
}

}  // namespace
}  // namespace saturate::serve
