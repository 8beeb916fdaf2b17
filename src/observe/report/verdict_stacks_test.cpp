// SPDX-License-Identifier: Apache-2.0
// Causes that calls and kernels do not tell apart, but samples of the program's stacks do.
#include <gtest/gtest.h>

#include "observe/testing/tell.h"

namespace saturate::observe {
namespace {

using testing::expect_sound;
using testing::find;
using testing::Frame;
using testing::layers;
using testing::Phases;
using testing::Simulator;
using testing::Step;
using testing::tell;
using testing::Told;

constexpr int64_t kMs = 1'000'000;
#define TORCH "/v/lib/python3.12/site-packages/torch/"

const std::vector<Frame> kCompiles = {
    {"step", "/home/a/train.py", 40, "model(x)"},
    {"ConvertFrame.__call__", TORCH "_dynamo/convert_frame.py", 9}};
const std::vector<Frame> kFetches = {{"main", "/home/a/train.py", 12, "for x in loader"},
                                     {"fetch", TORCH "utils/data/_utils/fetch.py", 54},
                                     {"Photos.__getitem__", "/home/a/train.py", 41, "decode(i)"}};
const std::vector<Frame> kPrints = {{"show", "/home/a/train.py", 23, "{logits}"},
                                    {"_Formatter.__init__", TORCH "_tensor_str.py", 204}};
const std::vector<Frame> kSorts = {{"show", "/home/a/train.py", 24, "sorted(names)"}};

// Every third step first works for 60 ms, then all compute.
Told new_shapes(const std::vector<Frame>& work, bool planted = true) {
  Phases phases;
  const Step step = [&](Simulator& s, int number) {
    if (planted && number % 3 == 2) phases.work(s, 60 * kMs, work);
    layers(s, 20, 500'000, 5'000);
    s.synchronize();
  };
  return tell(step, [&](Trace& t) { phases.sample(t); });
}

TEST(VerdictOfStacks, WhatIsCompiledAgainIsTheCompilers) {
  const Told before = new_shapes(kCompiles);
  EXPECT_EQ(before.verdict.id, "load_bound");
  expect_sound(before, FixKind::code_load, before.step_ns / new_shapes(kCompiles, false).step_ns);
  EXPECT_LT(find(before.fixes, FixKind::host_work)->speedup, kWorth);
  EXPECT_EQ(new_shapes(kSorts).verdict.id, "host_bound");
}

// A compiler may have threads or processes of its own, for which its caller sleeps.
TEST(VerdictOfStacks, AWaitForTheCompilerIsNoneForData) {
  const std::vector<Frame> xla = {
      {"step", "/home/a/train.py", 66, "update(x)"},
      {"backend_compile_and_load", "/v/lib/python3.12/site-packages/jax/_src/compiler.py", 395}};
  const auto program = [&](const std::vector<Frame>& work, bool planted) {
    Phases phases;
    const Step step = [&](Simulator& s, int number) {
      if (planted && number % 3 == 2) phases.wait(s, 60 * kMs, work);
      s.copy_in(4, 2'000, false);
      layers(s, 20, 500'000, 5'000);
      s.synchronize();
    };
    return tell(step, [&](Trace& t) { phases.sample(t); });
  };
  const Told before = program(xla, true);
  EXPECT_EQ(before.verdict.id, "load_bound");
  expect_sound(before, FixKind::code_load, before.step_ns / program(xla, false).step_ns);
  EXPECT_LT(find(before.fixes, FixKind::loader)->speedup, kWorth);
  EXPECT_EQ(program(kSorts, true).verdict.id, "input_bound");
}

// Where nothing can be promised, what code that is made took is an answer, in whichever leaves it lies:
// here a third longer than the largest other one.
TEST(VerdictOfStacks, CompilingIsACauseWithoutNumbersToo) {
  Phases phases;
  Simulator s;
  for (int i = 0; i < 12; ++i) {
    s.kernel("sm90_gemm_bf16bf16", 1'000'000 * (1 + i % 5));
    s.synchronize();
    phases.work(s, 40 * kMs, kCompiles);
    s.kernel("fill_kernel", 1'000 * i);
    s.copy_in(1 << 20, 300'000, true);
    phases.work(s, 30 * kMs, kSorts);
  }
  Trace trace = s.take();
  phases.sample(trace);
  const Analysis analysis = analyse(trace);
  FixReport none;
  none.why_not = "no steps were found";
  const Verdict v = judge(analysis, none);
  EXPECT_EQ(v.id, "load_bound");
  EXPECT_EQ(v.confidence, "low");
  EXPECT_NE(v.why.find("compiled"), std::string::npos) << v.why;
  const HostLines& lines = analysis.devices[0].host_lines;
  ASSERT_FALSE(lines.compiling.empty());
  EXPECT_EQ(lines.compiling[0].at.line, 40);
  EXPECT_NEAR(lines.compiling[0].share, 1, 1e-9);
  EXPECT_GT(lines.compiling_samples, 300);
}

Told batches(const std::vector<Frame>& work, bool planted = true) {
  Phases phases;
  const Step step = [&](Simulator& s, int) {
    if (planted) phases.work(s, 18 * kMs, work);
    s.copy_in(4 << 20, 100'000, false);
    layers(s, 20, 300'000, 5'000);
  };
  return tell(step, [&](Trace& t) { phases.sample(t); });
}

TEST(VerdictOfStacks, DataMadeWhereTheLoopAsksForThemAreTheLoaders) {
  const Told before = batches(kFetches);
  EXPECT_EQ(before.verdict.id, "input_bound");
  expect_sound(before, FixKind::loader, before.step_ns / batches(kFetches, false).step_ns);
  EXPECT_EQ(batches(kSorts).verdict.id, "host_bound");
}

// A wait of JAX's is no call of CUDA's: the host sleeps and works in a function that reads an array.
TEST(VerdictOfStacks, ReadingAnArrayIsAWaitForTheDevice) {
  const auto program = [](const char* function, bool planted) {
    const std::vector<Frame> reads = {
        {"main", "/home/a/train.py", 250, "float(loss)"},
        {function, "/v/lib/python3.12/site-packages/jax/_src/array.py", 637}};
    Phases phases;
    const Step step = [&](Simulator& s, int) {
      if (planted) phases.work(s, 8 * kMs, reads);
      layers(s, 20, 100'000, 5'000);
    };
    return tell(step, [&](Trace& t) { phases.sample(t); });
  };
  const Told before = program("ArrayImpl._value", true);
  EXPECT_EQ(before.verdict.id, "sync_bound");
  const Fix* const syncs = find(before.fixes, FixKind::syncs);
  const double gain = before.step_ns / program("ArrayImpl._value", false).step_ns;
  EXPECT_FALSE(syncs->ceiling);
  EXPECT_GT(gain, syncs->low);
  EXPECT_LT(gain, syncs->high);
  EXPECT_NEAR(syncs->speedup / gain, 1, 0.1);
  EXPECT_EQ(program("ArrayImpl.reshape", true).verdict.id, "host_bound");
}

// A wait cannot go while what is waited for is printed.
TEST(VerdictOfStacks, PrintingValuesIsTheHostsWork) {
  const auto program = [](const std::vector<Frame>& work) {
    Phases phases;
    const Step step = [&](Simulator& s, int) {
      layers(s, 30, 1'000'000, 20'000);
      s.copy_out(4, 2'000, true);
      phases.work(s, 12 * kMs, work);
    };
    return tell(step, [&](Trace& t) { phases.sample(t); });
  };
  EXPECT_EQ(program(kPrints).verdict.id, "host_bound");
  EXPECT_EQ(program(kSorts).verdict.id, "sync_bound");
}

}  // namespace
}  // namespace saturate::observe
