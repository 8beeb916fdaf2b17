// SPDX-License-Identifier: Apache-2.0
// Tables of normalisation by hand: what can be reached must lie inside, what cannot may be anything.
#include "data/sentencepiece_check.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace saturate::data {
namespace {

constexpr uint32_t kLeaf = 1u << 8;
uint32_t unit(uint32_t byte, uint32_t offset, uint32_t leaf = 0) {
  return byte | leaf | offset << 10;
}

// The root leads by 'a' to a node whose leaf is the string at `at`, of `strings` bytes in all.
std::vector<uint32_t> one_letter(uint32_t at) {
  std::vector<uint32_t> units(512);
  units[0] = unit(0, 1);                 // base 1
  units[1 ^ 'a'] = unit('a', 2, kLeaf);  // base 96 ^ 2
  units[98] = 0x80000000u | at;
  return units;
}

std::string blob_of(const std::vector<uint32_t>& units, const std::string& strings) {
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string blob(sizeof bytes + bytes, '\0');
  std::memcpy(blob.data(), &bytes, sizeof bytes);
  std::memcpy(blob.data() + sizeof bytes, units.data(), bytes);
  return blob + strings;
}

TEST(Charsmap, LeavesLieInTheStrings) {
  const std::string strings("b\0", 2);
  EXPECT_TRUE(charsmap_is_sound(blob_of(one_letter(0), strings)));
  EXPECT_TRUE(charsmap_is_sound(blob_of(one_letter(1), strings)));
  EXPECT_FALSE(charsmap_is_sound(blob_of(one_letter(2), strings)));
}

TEST(Charsmap, OnlyWhatABytesLeadsToCounts) {
  const std::string strings("b\0", 2);
  std::vector<uint32_t> units = one_letter(0);
  units[300] = unit(5, 4000);  // of base 297, which no node has
  EXPECT_TRUE(charsmap_is_sound(blob_of(units, strings)));
  units[98 ^ 'c'] = unit('c', 4000);  // behind "a": its children lie outside
  EXPECT_FALSE(charsmap_is_sound(blob_of(units, strings)));
  units[98 ^ 'c'] = unit('c', 260, kLeaf);  // behind "ac", in the second block
  units[(98 ^ 'c') ^ 260] = 0x80000000u | 1;
  EXPECT_TRUE(charsmap_is_sound(blob_of(units, strings)));
  units[(98 ^ 'c') ^ 260] = 0x80000000u | 7;
  EXPECT_FALSE(charsmap_is_sound(blob_of(units, strings)));
}

TEST(Charsmap, ANodeThatLeadsBackToTheRootEnds) {
  std::vector<uint32_t> units = one_letter(0);
  units[0] = unit(1, 1);  // the root is its own child by byte 1
  EXPECT_TRUE(charsmap_is_sound(blob_of(units, "b")));
}

TEST(Charsmap, BlocksAreWhole) {
  std::vector<uint32_t> units = one_letter(0);
  units.resize(200);
  EXPECT_FALSE(charsmap_is_sound(blob_of(units, "b")));
  EXPECT_FALSE(charsmap_is_sound("abc"));
  EXPECT_TRUE(charsmap_is_sound(""));
}

}  // namespace
}  // namespace saturate::data
