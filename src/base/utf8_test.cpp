// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

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

TEST(Utf8, PrefixesKeepCharactersWhole) {
  EXPECT_EQ(utf8_prefix("a\xC3\xA7z", 2), "a");
  EXPECT_EQ(utf8_prefix("a\xC3\xA7z", 3), "a\xC3\xA7");
  EXPECT_EQ(utf8_prefix("abc", 9), "abc");
}

}  // namespace
}  // namespace saturate
