// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <gtest/gtest.h>

namespace saturate {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("ab", "ba"), 1);   // one swap
  EXPECT_EQ(edit_distance("ca", "abc"), 3);  // the restricted form: no edit inside a swap
}

TEST(NearestName, FindsSlipsAndNothingElse) {
  constexpr std::string_view kNames[] = {"optimizer.lr", "optimizer.beta1", "optimizer.beta2",
                                         "train.seed"};
  EXPECT_EQ(nearest_name("optimiser.lr", kNames), "optimizer.lr");
  EXPECT_EQ(nearest_name("lr", kNames), "optimizer.lr");
  EXPECT_EQ(nearest_name("beta2", kNames), "optimizer.beta2");
  EXPECT_EQ(nearest_name("sede", kNames), "train.seed");
  EXPECT_EQ(nearest_name("vocabulary", kNames), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name(std::string(100000, 'x'), kNames), "");
  EXPECT_EQ(did_you_mean("trian.seed", kNames), "; did you mean 'train.seed'?");
}

TEST(Format, ReadsAsPeopleWrite) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(4.0 * (1 << 30)), "4.0 GiB");
  EXPECT_EQ(format_duration(0.416), "0.42 s");
  EXPECT_EQ(format_duration(59.4), "59 s");
  EXPECT_EQ(format_duration(59.6), "1 min 00 s");
  EXPECT_EQ(format_duration(7620), "2 h 07 min");
  EXPECT_EQ(format_duration(86400 * 3 + 4 * 3600), "3 d 04 h");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(999600), "1.00M");
  EXPECT_EQ(format_count(4.56e6), "4.56M");
}

TEST(ParseBytes, TakesWhatPeopleWrite) {
  EXPECT_EQ(parse_bytes("1048576"), 1048576);
  EXPECT_EQ(parse_bytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(parse_bytes(" 1.5 g "), int64_t{3} << 29);
  EXPECT_EQ(parse_bytes("512 MB"), 512000000);
  EXPECT_EQ(parse_bytes("0"), 0);
  for (const char* bad : {"", "GiB", "4 GiX", "-1", "nan", "1e30", "4Gi4", "inf"}) {
    EXPECT_EQ(parse_bytes(bad), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace saturate
