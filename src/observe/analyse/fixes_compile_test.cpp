// SPDX-License-Identifier: Apache-2.0
// Code that is made again and again: it is the cause, whatever it comes after, and takes along what makes it.
#include <gtest/gtest.h>

#include "observe/testing/fix_report.h"
#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

constexpr int64_t kUs = 1'000;
constexpr int kSteps = 40;

struct Read {
  Analysis analysis;
  FixReport fixes;
};

Read read(testing::Simulator& s, const testing::Phases& phases) {
  Trace t = s.take();
  phases.sample(t);
  Read r{.analysis = analyse(t), .fixes = {}};
  r.fixes = find_fixes(testing::replay_of(t, r.analysis), r.analysis);
  return r;
}

// A result is read, and then the next step's kernel is compiled: the wait is no cause of that.
TEST(FixesCompile, WhatIsCompiledAfterAWaitIsNotTheWaits) {
  const auto program = [](const char* file) {
    testing::Simulator s;
    testing::Phases phases;
    for (int i = 0; i < kSteps; ++i) {
      s.begin_step(i);
      s.kernel("filtered", 6'000 * kUs);
      s.copy_out(256, 2 * kUs, true);
      phases.work(
          s, 5'000 * kUs,
          {{"main", "/home/a/train.py", 90, "kept[text].compile()"}, {"compile", file, 860}});
    }
    return read(s, phases).fixes;
  };
  const FixReport compiled = program("/v/site-packages/cupy/cuda/compiler.py");
  ASSERT_FALSE(compiled.worth.empty());
  EXPECT_EQ(fix_info(compiled.worth.front().kind).id, "code_load");
  EXPECT_NEAR(compiled.worth.front().speedup, 11.0 / 6, 0.2);
  const FixReport other = program("/v/site-packages/numpy/core.py");
  ASSERT_FALSE(other.worth.empty());
  EXPECT_NE(fix_info(other.worth.front().kind).id, "code_load");
}

// Plans that are made anew in each step load a module each, and the host works for them as long again.
TEST(FixesCompile, WhatLoadsInEachStepTakesAlongWhatMakesIt) {
  testing::Simulator s;
  const testing::Phases phases;
  for (int i = 0; i < kSteps; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 10; ++k) {
      s.host(400 * kUs);
      s.call("cuModuleLoadData", 600 * kUs);
      s.kernel("transform", 200 * kUs);
    }
  }
  const Read r = read(s, phases);
  ASSERT_TRUE(r.fixes.numbers) << r.fixes.why_not;
  const Fix* const load = testing::find(r.fixes, FixKind::code_load);
  ASSERT_NE(load, nullptr);
  EXPECT_FALSE(load->ceiling);
  const double step_ns = r.fixes.replay_step_ns, kernels_ns = 10 * 200.0 * kUs;
  EXPECT_LE(load->low, step_ns / (step_ns - 10 * 600.0 * kUs));
  EXPECT_GE(load->high, step_ns / kernels_ns);
}

}  // namespace
}  // namespace saturate::observe
