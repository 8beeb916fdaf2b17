// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/growth.h"

#include <gtest/gtest.h>

#include <functional>

#include "observe/analyse/steps.h"

namespace saturate::observe {
namespace {

constexpr int64_t kMs = 1'000'000;

StepAnalysis steps_of(const std::function<double(int)>& ms) {
  constexpr int kSteps = 64;
  StepAnalysis s;
  s.found = true;
  int64_t now = 0;
  for (int i = 0; i < kSteps; ++i) {
    StepStat one;
    one.start_ns = now;
    now += static_cast<int64_t>(ms(i) * kMs);
    one.end_ns = now;
    s.steps.push_back(one);
  }
  s.mean_ns = s.stretch_ns = static_cast<double>(now) / kSteps;
  s.drift = ms(kSteps - 1) / ms(0);
  return s;
}

TEST(Growth, StepsThatGrowByLittleEach) {
  const Growth g = find_growth(steps_of([](int i) { return 10 + 0.2 * i; }));
  ASSERT_TRUE(g.found);
  EXPECT_NEAR(g.early_ns, 11.6e6, 0.3e6);
  EXPECT_NEAR(g.late_ns, 21.2e6, 0.3e6);
  EXPECT_NEAR(g.first_ns, 10e6, 0.3e6);
}

// A recording in windows leaves out what lies between them.
TEST(Growth, AJumpBetweenWindowsIsGrowth) {
  EXPECT_TRUE(find_growth(steps_of([](int i) { return 10 + 0.4 * i + (i >= 30 ? 20 : 0); })).found);
}

// Another program makes the middle of the run slow; what each step computes says that it grows.
TEST(Growth, MoreAndMoreKernelsAreGrowthHoweverTheTimesScatter) {
  StepAnalysis s = steps_of([](int i) { return 10 + 0.1 * i + (i >= 20 && i < 50 ? 8 : 0); });
  EXPECT_FALSE(find_growth(s).found);
  for (size_t i = 0; i < s.steps.size(); ++i)
    s.steps[i].kernels = 100 + 4 * static_cast<int64_t>(i);
  EXPECT_TRUE(find_growth(s).found);
  for (StepStat& one : s.steps) one.kernels = 100;
  EXPECT_FALSE(find_growth(s).found);
}

TEST(Growth, WhatSetsInAtOneMomentIsNone) {
  const auto noise = [](int i) { return 0.3 * ((i * 3) % 7) + 0.01 * i; };
  EXPECT_FALSE(find_growth(steps_of([&](int i) {
                 return 10 + noise(i) + (i >= 20 ? 20 : 0) + (i >= 50 ? 5 : 0);
               })).found);
}

TEST(StartUp, APauseAfterManyStepsIsNoStart) {
  // 30 ms of another loop, `before` steps of 1 ms, a pause of 40 ms, 60 steps.
  const auto marks = [](int before) {
    StepMarks m;
    int64_t now = 0;
    const auto add = [&](int64_t ms, bool regular) {
      m.begin_ns.push_back(now);
      m.regular.push_back(regular);
      now += ms * kMs;
    };
    add(30, false);
    for (int i = 0; i < before; ++i) add(1, true);
    add(40, false);
    for (int i = 0; i < 60; ++i) add(1, true);
    m.begin_ns.push_back(now);
    return m;
  };
  EXPECT_EQ(start_up_steps(marks(5)), 7u);
  EXPECT_EQ(start_up_steps(marks(25)), 1u);
}

// 180 short ones that are no steps, while kernels are tried and compiled, before 120 that are.
TEST(Steps, WhatIsTriedWhileItIsCompiledIsNoStep) {
  StepMarks m;
  int64_t now = 0;
  for (int i = 0; i <= 300; ++i) {
    m.begin_ns.push_back(now);
    m.regular.push_back(i >= 180);
    now += i < 180 ? kMs / 5 : 10 * kMs;
    if (i == 179) now += 1500 * kMs;
  }
  EXPECT_EQ(start_up_steps(m), 180u);
}

// 120 steps of 10 ms, but for those that `pauses` says are long.
StepMarks with_pauses(const std::function<int64_t(int)>& pauses) {
  StepMarks m;
  int64_t now = 0;
  for (int i = 0; i <= 120; ++i) {
    m.begin_ns.push_back(now);
    m.regular.push_back(true);
    now += pauses(i) > 0 ? pauses(i) : 10 * kMs;
  }
  return m;
}

// A lock or a download keeps the program for seconds, once: the steps begin behind it.
TEST(Steps, APauseAtTheStartIsNoPartOfThem) {
  EXPECT_EQ(steps_after_pauses(with_pauses([](int i) { return i == 20 ? 800 * kMs : 0; })), 21u);
  EXPECT_EQ(
      steps_after_pauses(with_pauses([](int i) { return i == 5 || i == 20 ? 800 * kMs : 0; })),
      21u);
}

TEST(Steps, WhatMayComeAgainIsPartOfThem) {
  const auto after = [](const std::function<int64_t(int)>& pauses) {
    return steps_after_pauses(with_pauses(pauses));
  };
  EXPECT_EQ(after([](int i) { return i == 60 ? 800 * kMs : 0; }), 0u) << "an epoch's end";
  EXPECT_EQ(after([](int i) { return i % 50 == 20 ? 800 * kMs : 0; }), 0u) << "a checkpoint";
  EXPECT_EQ(after([](int i) { return i < 30 && i % 5 == 0 ? 800 * kMs : 0; }), 0u) << "too often";
  EXPECT_EQ(after([](int i) { return i == 20 ? 250 * kMs : 0; }), 0u) << "too short";
  EXPECT_EQ(after([](int) { return 0; }), 0u);
}

}  // namespace
}  // namespace saturate::observe
