// SPDX-License-Identifier: Apache-2.0
// Every axis of parallelism, alone and with others, computes what one rank computes: losses, each
// gradient, the norm, and every weight after three steps, in f64.
#include <gtest/gtest.h>

#include <cstdlib>

#include "train/layout_harness_test.h"

namespace saturate::train {
namespace {

class LayoutParity : public testing::TestWithParam<const char*> {};

TEST_P(LayoutParity, EqualsOneRank) {
  const LayoutCase c = case_of(GetParam());
  const std::string refusal = refusal_of(c);
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  EXPECT_EQ(mistake_of(c), "") << "again with: LAYOUT_CASE='" << c.text()
                               << "' saturate_train_test --gtest_filter=LayoutCase.*";
}

constexpr const char* kData[] = {"translation dp=2 4", "gpt dp=4,zero=0 4", "llama dp=2 4 averaged",
                                 "modern-translation dp=4 8 frozen", "linear dp=3 6 unclipped"};
INSTANTIATE_TEST_SUITE_P(Data, LayoutParity, testing::ValuesIn(kData));

// One case by hand.
TEST(LayoutCase, FromTheEnvironment) {
  const char* text = std::getenv("LAYOUT_CASE");
  if (text == nullptr) GTEST_SKIP() << "LAYOUT_CASE names none";
  const LayoutCase c = case_of(text);
  for (const LayoutDistance& d : distances(reference_of(c), result_of(c)))
    if (std::getenv("LAYOUT_ALL") != nullptr || !(d.relative <= kBound))
      std::printf("%-60s %.3g\n", d.what.c_str(), d.relative);
  EXPECT_EQ(mistake_of(c), "");
}

}  // namespace
}  // namespace saturate::train
