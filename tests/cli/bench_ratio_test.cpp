// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "apps/bench_against.h"

namespace saturate::apps {
namespace {

// `rounds` pairs of times around 10 ms: each program's noise, and a drift of the machine that both share.
struct Times {
  std::vector<double> before, now;
};
Times times_of(uint64_t seed, size_t rounds, double slower, double noise) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> interruption;  // only ever makes a run longer
  Times t;
  double machine = 10;
  for (size_t i = 0; i < rounds; ++i) {
    machine *= 1 + 0.02 * normal(random);
    const auto run = [&] {
      return machine * (1 + noise * (0.3 * normal(random) + interruption(random)));
    };
    t.before.push_back(run());
    t.now.push_back(slower * run());
  }
  return t;
}
double share_slower(size_t rounds, double slower, double noise) {
  int found = 0;
  constexpr int kTrials = 4000;
  for (int i = 0; i < kTrials; ++i) {
    const Times t = times_of(static_cast<uint64_t>(i), rounds, slower, noise);
    found += compare_in_turns(t.before, t.now).slower();
  }
  return static_cast<double>(found) / kTrials;
}

TEST(BenchRatio, TheSameProgramIsRarelyCalledSlowerWhateverTheNoise) {
  for (const double noise : {0.0, 0.01, 0.1, 1.0})
    for (const size_t rounds : {7u, 11u, 20u})
      EXPECT_LE(share_slower(rounds, 1.0, noise), 0.012) << noise << " " << rounds;
}

TEST(BenchRatio, ASlowerProgramIsFoundWhereItStandsOutOfTheNoise) {
  EXPECT_EQ(share_slower(7, 1.02, 0.0), 1.0);
  EXPECT_GE(share_slower(7, 1.10, 0.02), 0.95);
  EXPECT_GE(share_slower(21, 1.05, 0.02), 0.9);
  EXPECT_LE(share_slower(7, 1.10, 1.0), 0.1);  // not to be told from such noise
}

TEST(BenchRatio, OnePercentIsAllowed) {
  EXPECT_EQ(share_slower(7, 1.009, 0.0), 0.0);
  const Times faster = times_of(1, 7, 0.9, 0.0);
  EXPECT_TRUE(compare_in_turns(faster.before, faster.now).faster());
}

TEST(BenchRatio, TooFewTurnsSayNothing) {
  const Times t = times_of(1, 6, 2.0, 0.0);
  EXPECT_FALSE(compare_in_turns(t.before, t.now).slower());
}

TEST(BenchRatio, ARowsOwnSpreadIsPartOfTheNoise) {
  const std::vector<double> now(7, 11.0);
  EXPECT_TRUE(compare_with_row(10, 0.01, now).slower());
  EXPECT_FALSE(compare_with_row(10, 0.2, now).slower());
  EXPECT_TRUE(compare_with_row(12, 0.01, now).faster());
  // Not known: as that of the times now.
  EXPECT_TRUE(compare_with_row(10, -1, now).slower());
  EXPECT_FALSE(
      compare_with_row(10, -1, std::vector<double>{10.2, 12.5, 11, 11.5, 10.4, 12, 10.8}).slower());
}

}  // namespace
}  // namespace saturate::apps
