// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/fix_bounds.h"

#include <gtest/gtest.h>

namespace saturate::observe {
namespace {

Fix estimate(FixKind kind) {
  Fix f;
  f.kind = kind;
  f.ceiling = false;
  f.low = 2;
  f.speedup = 4;
  f.high = 8;
  f.step_ns = 1000;
  return f;
}

TEST(FixBounds, EstimatesExpectAPartOfWhatAReplayTakesAway) {
  FixReport report;
  report.worth = {estimate(FixKind::graphs), estimate(FixKind::host_work)};
  report.worth[0].obstacle = "a step waits for the device";
  report.not_worth = {estimate(FixKind::loader)};
  expect_a_part(report);
  for (const Fix& f : {report.worth[0], report.worth[1], report.not_worth[0]}) {
    EXPECT_NEAR(f.speedup, 2.639, 1e-3);  // 4 to the power of 0.7
    EXPECT_NEAR(f.low, 1.741, 1e-3);      // 2 to the power of 0.8
    EXPECT_EQ(f.high, 8);
    EXPECT_NEAR(f.step_ns, 1000 * 4 / f.speedup, 1e-9);  // of the same step as it is
  }
}

TEST(FixBounds, TheMiddleStaysInItsRange) {
  FixReport report;
  report.worth = {estimate(FixKind::syncs)};
  report.worth[0].low = 3.9;
  expect_a_part(report);
  EXPECT_EQ(report.worth[0].speedup, report.worth[0].low);
}

TEST(FixBounds, AGraphOfTheStepAsItIsTakesAllLaunches) {
  FixReport report;
  report.worth = {estimate(FixKind::graphs)};
  expect_a_part(report);
  EXPECT_EQ(report.worth[0].speedup, 4);
  EXPECT_LT(report.worth[0].low, 2);
}

TEST(FixBounds, CeilingsAndOtherEstimatesStay) {
  FixReport report;
  Fix ceiling = estimate(FixKind::graphs), unsure = estimate(FixKind::mixed);
  ceiling.ceiling = true;
  ceiling.low = ceiling.high = 0;
  unsure.unsure = true;
  report.worth = {ceiling, unsure, estimate(FixKind::fusion), estimate(FixKind::batch)};
  expect_a_part(report);
  for (const Fix& f : report.worth) {
    EXPECT_EQ(f.speedup, 4);
    EXPECT_EQ(f.step_ns, 1000);
  }
}

}  // namespace
}  // namespace saturate::observe
