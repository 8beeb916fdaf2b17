// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

#include "base/counted.h"

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
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(640 * 0x1p20), "640 MiB");
  EXPECT_EQ(format_bytes(1023.9 * 0x1p20), "1.0 GiB");
  EXPECT_EQ(format_bytes(4 * 0x1p30), "4.0 GiB");
  EXPECT_EQ(format_bytes(kNan), "?");
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(-3), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(3 * 3600 + 7 * 60 + 12), "3:07:12");
  EXPECT_EQ(format_duration(51 * 3600 + 10 * 60), "2d 03:10");
  EXPECT_EQ(format_duration(1e300), "?");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999.4), "999");
  EXPECT_EQ(format_count(999.6), "1.00k");
  EXPECT_EQ(format_count(7284), "7.28k");
  EXPECT_EQ(format_count(9996), "10.0k");
  EXPECT_EQ(format_count(12345), "12.3k");
  EXPECT_EQ(format_count(999700), "1.00M");
  EXPECT_EQ(format_count(4.56e6), "4.56M");
  EXPECT_EQ(format_count(kNan), "?");
}

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(0, "bad line"), "0 bad lines");
  EXPECT_EQ(counted(size_t{1}, "bad line"), "1 bad line");
  EXPECT_EQ(counted(int64_t{2}, "GPU"), "2 GPUs");
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
