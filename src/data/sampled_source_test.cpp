// SPDX-License-Identifier: Apache-2.0
#include "data/sampled_source.h"

#include <gtest/gtest.h>

#include <set>

#include "data/testing/sample_corpus.h"
#include "data/text_reader.h"

namespace saturate::data {
namespace {

std::vector<int64_t> numbers(const std::string& path, int64_t bytes, uint64_t seed) {
  TextReader reader(path, kMaxLineBytes, {.bytes = bytes, .seed = seed});
  std::vector<int64_t> all;
  for (std::string_view line; reader.next(line);) {
    EXPECT_EQ(line.size(), 9u);
    all.push_back(std::stoll(std::string(line)));
  }
  return all;
}

TEST(SampledSource, GivesWholeLinesFromAllOverTheFile) {
  const SampleFolder dir;
  std::string text;
  constexpr int64_t kLines = 1000000;  // of 10 bytes
  for (int64_t i = 0; i < kLines; ++i) text += std::to_string(100000000 + i) + "\n";
  const auto path = dir.write("a", text);
  const auto some = numbers(path, 1 << 20, 1);
  EXPECT_GT(std::ssize(some), 80000);
  EXPECT_LT(std::ssize(some), 110000);
  EXPECT_EQ(std::set<int64_t>(some.begin(), some.end()).size(), some.size());
  std::set<int64_t> tenths;
  for (const int64_t n : some) tenths.insert((n - 100000000) / (kLines / 10));
  EXPECT_EQ(tenths.size(), 10u);
  EXPECT_EQ(some, numbers(path, 1 << 20, 1));
  EXPECT_NE(some, numbers(path, 1 << 20, 2));
  EXPECT_EQ(std::ssize(numbers(path, kLines * 10, 1)), kLines);
}

TEST(SampledSource, FindsLinesLongerThanItsBlocks) {
  const SampleFolder dir;
  std::string text;
  for (int i = 0; i < 40; ++i) text += std::string(200000, 'a') + "\n";
  TextReader reader(dir.write("a", text), kMaxLineBytes, {.bytes = 1 << 18, .seed = 1});
  int lines = 0;
  for (std::string_view line; reader.next(line); ++lines) EXPECT_EQ(line.size(), 200000u);
  EXPECT_GT(lines, 0);
}

}  // namespace
}  // namespace saturate::data
