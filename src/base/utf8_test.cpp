// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace saturate {
namespace {

TEST(Utf8, FindsTheFirstBadByte) {
  const auto npos = std::string_view::npos;
  EXPECT_EQ(find_invalid_utf8(""), npos);
  EXPECT_EQ(find_invalid_utf8("plain, \xC3\xA7, \xE2\x82\xAC, \xF0\x9F\x98\x80"), npos);
  EXPECT_EQ(find_invalid_utf8("\xF4\x8F\xBF\xBF"), npos);  // U+10FFFF
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(find_invalid_utf8("ab\xC3"), 2u);            // cut off
  EXPECT_EQ(find_invalid_utf8("\xC0\xAF"), 0u);          // overlong
  EXPECT_EQ(find_invalid_utf8("\xE0\x80\xAF"), 0u);      // overlong
  EXPECT_EQ(find_invalid_utf8("\xED\xA0\x80"), 0u);      // surrogate
  EXPECT_EQ(find_invalid_utf8("\xF4\x90\x80\x80"), 0u);  // above U+10FFFF
  EXPECT_EQ(find_invalid_utf8("x\xE2\x28\xA1"), 1u);
}

TEST(Utf8, DecodesUtf8AsPython) {
  const std::pair<std::string, std::string> kCases[] = {
      {"ok \xff", "ok \xef\xbf\xbd"},
      {"\xc3", "\xef\xbf\xbd"},
      {"\xe2\x82", "\xef\xbf\xbd"},
      {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xf0\x90\x80x", "\xef\xbf\xbdx"},
      {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
      {"\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82\xac\xf0\x9f\x98\x80"},
  };
  for (const auto& [text, expected] : kCases) EXPECT_EQ(encode_utf8(decode_utf8(text)), expected);
}

TEST(Utf8, EveryCodePointSurvivesEncoding) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x3000 ? 1 : 97) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    ASSERT_EQ(decode_utf8(encode_utf8(std::u32string(1, c))), std::u32string(1, c));
  }
}

TEST(Utf8, PrefixesKeepCharactersWhole) {
  EXPECT_EQ(utf8_prefix("a\xC3\xA7z", 2), "a");
  EXPECT_EQ(utf8_prefix("a\xC3\xA7z", 3), "a\xC3\xA7");
  EXPECT_EQ(utf8_prefix("abc", 9), "abc");
}

}  // namespace
}  // namespace saturate
