// SPDX-License-Identifier: Apache-2.0
#include "plan/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace saturate::plan {
namespace {

// Useful time over all time of a run that is played: exponential failures, in checkpoints and
// restarts too.
double played(const FailureModel& m, double interval, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<double> next(1 / m.mtbf_s);
  double clock = 0, useful = 0, failure = next(random);
  const auto runs_through = [&](double seconds) {
    if (clock + seconds <= failure) {
      clock += seconds;
      return true;
    }
    clock = failure;
    failure = clock + next(random);
    return false;
  };
  for (int done = 0; done < 20000;) {
    if (runs_through(interval + m.checkpoint_s)) {
      useful += interval;
      ++done;
      continue;
    }
    while (!runs_through(m.restart_s)) {
    }
  }
  return useful / clock;
}

TEST(Goodput, IsThatOfAPlayedRun) {
  const FailureModel models[] = {{.mtbf_s = 3600, .checkpoint_s = 20, .restart_s = 120},
                                 {.mtbf_s = 44000, .checkpoint_s = 60, .restart_s = 300},
                                 {.mtbf_s = 1000, .checkpoint_s = 100, .restart_s = 200}};
  uint64_t seed = 1;
  for (const FailureModel& m : models) {
    for (const double factor : {0.3, 1.0, 3.0}) {
      const double interval = factor * std::sqrt(2 * m.checkpoint_s * m.mtbf_s);
      EXPECT_NEAR(goodput(m, interval), played(m, interval, seed++), 0.015)
          << m.mtbf_s << " " << interval;
    }
  }
}

TEST(Goodput, TheBestIntervalIsBestAndNearYoungs) {
  const FailureModel m{.mtbf_s = 44000, .checkpoint_s = 30, .restart_s = 300};
  const double best = best_interval_s(m);
  EXPECT_NEAR(best, std::sqrt(2 * 30.0 * 44000), 0.05 * best);
  for (const double other : {0.5, 0.9, 1.1, 2.0})
    EXPECT_GT(goodput(m, best), goodput(m, other * best));
}

TEST(Goodput, FallsWithTheNumberOfDevices) {
  Machine m;
  m.devices_per_host = 8;
  m.failures = {.device_mtbf_hours = 50000, .restart_s = 300, .checkpoint_gbs = 4};
  double last = 1;
  for (const int n : {64, 512, 4096}) {
    const FailureModel f = failure_model(m, n, 1e11);
    EXPECT_DOUBLE_EQ(f.mtbf_s, 50000.0 * 3600 / n);
    EXPECT_DOUBLE_EQ(f.checkpoint_s, 1e11 / 4e9 / (n / 8));
    const double g = goodput(f, 1800);
    EXPECT_LT(g, last);
    last = g;
  }
}

}  // namespace
}  // namespace saturate::plan
