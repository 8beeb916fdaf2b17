// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/analyser.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "observe/testing/simulator.h"
#include "observe/testing/windows.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

// A training step of `layers` alike layers, forward and backward, and an optimizer.
void step(Simulator& s, int layers, int64_t extra_host_ns = 0, bool marked = false,
          int number = 0) {
  if (marked) s.begin_step(number);
  s.host(40'000 + extra_host_ns);
  s.copy_in(1 << 20, 50'000, false);
  for (int i = 0; i < layers; ++i) {
    s.kernel("sm90_gemm_bf16bf16_fwd", 30'000);
    s.kernel("gelu", 12'000);
  }
  s.kernel("cross_entropy", 15'000);
  for (int i = 0; i < layers; ++i) {
    s.kernel("gelu_backward", 12'000);
    s.kernel("sm90_gemm_bf16bf16_bwd", 60'000);
  }
  s.kernel("multi_tensor_adam", 30'000);
  s.synchronize();
}

TEST(Steps, FoundByPeriodNotByLayer) {
  for (const int layers : {1, 2, 12, 24}) {
    Simulator s;
    for (int i = 0; i < 20; ++i) step(s, layers);
    Trace t = s.take();
    const Analysis a = analyse(t);
    ASSERT_TRUE(a.steps.found) << layers;
    EXPECT_EQ(a.steps.count, 19) << layers;
    EXPECT_EQ(a.steps.irregular, 0);
    EXPECT_EQ(a.devices[0].budget.total_ns(), a.devices[0].to_ns - a.devices[0].from_ns);
    for (const StepStat& one : a.steps.steps)
      EXPECT_EQ(one.budget.total_ns(), one.end_ns - one.start_ns);
  }
}

TEST(Steps, MarksWinAndBothAgree) {
  Simulator plain, marked;
  for (int i = 0; i < 20; ++i) {
    step(plain, 4);
    step(marked, 4, 0, true, i);
  }
  Trace p = plain.take(), m = marked.take();
  const Analysis a = analyse(p), b = analyse(m);
  EXPECT_NE(b.steps.rule.find("ProfilerStep#"), std::string::npos);
  EXPECT_EQ(a.steps.count, b.steps.count);
  EXPECT_EQ(a.steps.median_ns, b.steps.median_ns);
}

TEST(Steps, WarmUpIsLeftOutAndEvaluationIsNoStep) {
  Simulator s;
  for (int i = 0; i < 3; ++i) step(s, 4, 2'000'000);  // slow at first
  for (int i = 0; i < 10; ++i) step(s, 4);
  for (int i = 0; i < 50; ++i) s.kernel("evaluate", 20'000);
  for (int i = 0; i < 10; ++i) step(s, 4);
  Trace t = s.take();
  const Analysis a = analyse(t);
  ASSERT_TRUE(a.steps.found);
  EXPECT_EQ(a.steps.warm_up, 2);  // the wait of the first lies before its begin
  EXPECT_EQ(a.steps.irregular, 1);
  EXPECT_EQ(a.steps.count, 23 - 2 - 1 - 1);
  EXPECT_DOUBLE_EQ(a.steps.drift, 1);
}

// A program builds its model, tries something else and then trains: that is what its steps are.
TEST(Steps, StartUpIsLeftOut) {
  Simulator s;
  s.host(500'000'000);
  for (int i = 0; i < 8; ++i) {
    s.kernel("warm up", 20'000);
    s.host(5'000'000);
  }
  for (int i = 0; i < 2; ++i) step(s, 4);
  s.host(300'000'000);  // compiles
  for (int i = 0; i < 40; ++i) step(s, 4);
  Trace t = s.take();
  const Analysis a = analyse(t);
  ASSERT_TRUE(a.steps.found);
  EXPECT_EQ(a.steps.irregular, 0);
  EXPECT_GE(a.steps.count, 38);
  EXPECT_LT(static_cast<double>(a.devices[0].to_ns - a.devices[0].from_ns),
            1.1 * a.steps.mean_ns * static_cast<double>(a.steps.count));
}

// Something else goes on for nearly half of the capture, of the same kernels in another order.
TEST(Steps, AreFoundBehindAnotherLoop) {
  Simulator s;
  for (int i = 0; i < 40; ++i) {
    for (int k = 0; k < 11; ++k) s.kernel("k" + std::to_string(k), 30'000);
    s.host(100'000);
  }
  const int64_t begin_ns = s.done_ns();
  for (int i = 0; i < 50; ++i) {
    for (int k = 0; k < 11; ++k) {
      s.kernel("k" + std::to_string(10 - k), 30'000);
      if (k % 4 == 1) s.kernel("look", 5'000), s.synchronize();
    }
    s.host(100'000);
  }
  Trace t = s.take();
  const int64_t end_ns = t.ops.back().end_ns;
  const Analysis a = analyse(t);
  ASSERT_TRUE(a.steps.found);
  EXPECT_NE(a.steps.rule.find("14 operations"), std::string::npos) << a.steps.rule;
  EXPECT_GE(a.steps.count, 46);
  EXPECT_LE(a.steps.count, 50);
  EXPECT_NEAR(static_cast<double>(end_ns - begin_ns) / 50, a.steps.mean_ns, 0.02 * a.steps.mean_ns);
}

// A program that ran before the one whose steps are detected is left out, which must be said.
TEST(Analyser, WorkThatIsNotAnalysedIsTold) {
  const auto mentioned = [](int others) {
    Simulator s;
    for (int i = 0; i < others; ++i) {
      s.host(20'000);
      s.kernel("other_program", 400'000 + 10'000 * (i * 7 % 11));
    }
    for (int i = 0; i < 40; ++i) step(s, 4);
    Trace t = s.take();
    const Analysis a = analyse(t);
    EXPECT_TRUE(a.steps.found);
    return std::any_of(a.notes.begin(), a.notes.end(), [](const std::string& note) {
      return note.find("the report is of the steps") != std::string::npos;
    });
  };
  EXPECT_FALSE(mentioned(0));
  EXPECT_TRUE(mentioned(200));
}

// All kernels alike: steps are detected by what the host does between them.
TEST(Steps, AreToldByCallsOfTheHost) {
  const auto kernels = [](Simulator& s) {
    for (int k = 0; k < 5; ++k) s.kernel("kernel", 20'000);
  };
  Simulator waits, allocates, pauses;
  for (int i = 0; i < 30; ++i) {
    kernels(waits);
    waits.synchronize();
    allocates.call("cudaMalloc", 100'000);
    kernels(allocates);
    pauses.host(3'000'000);
    kernels(pauses);
  }
  for (Simulator* s : {&waits, &allocates, &pauses}) {
    Trace t = s->take();
    const Analysis a = analyse(t);
    EXPECT_NE(a.steps.rule.find("5 operations"), std::string::npos) << a.steps.rule;
    EXPECT_GE(a.steps.count, 27);
  }
}

TEST(Steps, GrowthIsDrift) {
  Simulator s;
  for (int i = 0; i < 40; ++i) step(s, 4, i * 20'000);
  Trace t = s.take();
  const Analysis a = analyse(t);
  EXPECT_GT(a.steps.drift, 1.4);
  EXPECT_EQ(a.steps.warm_up, 0);
}

TEST(Steps, RangesOfOtherProgramsCountToo) {
  for (const char* prefix : {"iteration ", "train_step_", "batch#"}) {
    Simulator s;
    for (int i = 0; i < 10; ++i) {
      const int64_t start = s.now_ns();
      step(s, 2);
      s.range(prefix + std::to_string(i), start);
    }
    Trace t = s.take();
    const Analysis a = analyse(t);
    EXPECT_NE(a.steps.rule.find(prefix), std::string::npos) << a.steps.rule;
    EXPECT_EQ(a.steps.count, 9);
  }
}

// Nodes of a graph are issued by one call.
TEST(Analyser, LaunchesAreCalls) {
  Simulator s;
  for (int i = 0; i < 10; ++i) {
    s.begin_step(i);
    s.kernel("a", 20'000);
    s.kernel("b", 20'000);
  }
  Trace t = s.take();
  for (DeviceOp& op : t.ops) op.correlation = (op.correlation + 1) / 2 * 2;
  t.sort();
  const Analysis a = analyse(t);
  EXPECT_EQ(a.devices[0].ops, 18);
  EXPECT_EQ(a.devices[0].launches, 9);
  EXPECT_EQ(a.devices[0].launch_ns, 9 * 4'000);
}

// A replayed graph is one operation that repeats; copies at the start of the program are no steps.
TEST(Steps, AGraphThatRepeatsIsAStep) {
  Simulator s;
  for (int i = 0; i < 12; ++i) {
    s.host(50'000);
    s.copy_in(4096, 4'000, true);
  }
  for (int i = 0; i < 200; ++i) {
    s.kernel("graph 2", 250'000);
    s.synchronize();
  }
  Trace t = s.take();
  const Analysis a = analyse(t);
  EXPECT_TRUE(a.steps.found);
  EXPECT_GT(a.steps.count, 190);
  EXPECT_NEAR(a.steps.median_ns, 260'000, 10'000);
}

TEST(Steps, NoneInNoise) {
  Simulator s;
  uint32_t x = 1;
  for (int i = 0; i < 2000; ++i) {
    x = x * 1664525u + 1013904223u;
    s.kernel("k" + std::to_string(x >> 27), 10'000);
  }
  Trace t = s.take();
  const Analysis a = analyse(t);
  EXPECT_FALSE(a.steps.found);
  EXPECT_EQ(a.devices[0].budget.total_ns(), a.devices[0].to_ns - a.devices[0].from_ns);
}

// Windows of any size give what one pass gives.
TEST(Analyser, WindowsGiveTheSame) {
  Simulator s;
  for (int i = 0; i < 60; ++i) {
    step(s, 4, i % 7 == 3 ? 300'000 : 0, true, i);
    s.kernel("ncclDevKernel_AllReduce", 40'000, 20);
  }
  const Trace whole = s.take();
  Trace once = whole;
  const Analysis expected = analyse(once);
  for (const size_t size : {60u, 200u, 5000u}) {
    Analyser analyser;
    Trace window = whole;
    window.ops.clear();
    window.calls.clear();
    window.spans.clear();
    size_t op = 0, call = 0, span = 0;
    // Records arrive when they end, as from a profiler: whole steps late.
    while (op < whole.ops.size()) {
      const size_t to = std::min(op + size, whole.ops.size());
      const int64_t until = to < whole.ops.size() ? whole.ops[to].start_ns : INT64_MAX;
      while (op < to) window.ops.push_back(whole.ops[op++]);
      while (call < whole.calls.size() && whole.calls[call].start_ns < until)
        window.calls.push_back(whole.calls[call++]);
      while (span < whole.spans.size() && whole.spans[span].start_ns < until)
        window.spans.push_back(whole.spans[span++]);
      window.sort();
      analyser.consume(window, op == whole.ops.size());
    }
    const Analysis got = analyser.finish(window);
    ASSERT_EQ(got.steps.count, expected.steps.count) << size;
    EXPECT_EQ(got.steps.median_ns, expected.steps.median_ns);
    EXPECT_EQ(got.devices[0].budget, expected.devices[0].budget);
    EXPECT_EQ(got.devices[0].from_ns, expected.devices[0].from_ns);
    EXPECT_EQ(got.devices[0].ops, expected.devices[0].ops);
    EXPECT_EQ(got.records, expected.records);
    for (size_t i = 0; i < got.steps.steps.size(); ++i)
      EXPECT_EQ(got.steps.steps[i].budget, expected.steps.steps[i].budget);
  }
}

// Nor does it matter that the host is many steps ahead of the device when a window ends.
TEST(Analyser, WindowsOfAHostFarAhead) {
  for (const bool marked : {true, false}) {
    Simulator s;
    for (int i = 0; i < 40; ++i) {
      if (marked) s.begin_step(i);
      s.host(20'000);
      s.kernel("first", 40'000);
      for (int k = 0; k < 9; ++k) s.kernel("sm90_gemm_bf16bf16", 30'000 + i * 100);
    }
    const Trace whole = s.take();
    Trace once = whole;
    const Analysis expected = analyse(once);
    const Analysis got = testing::analyse_in_parts(whole, 5);
    EXPECT_EQ(got.steps.count, expected.steps.count) << marked;
    EXPECT_EQ(got.steps.irregular, 0);
    EXPECT_EQ(got.steps.median_ns, expected.steps.median_ns);
    EXPECT_EQ(got.devices[0].budget, expected.devices[0].budget);
    EXPECT_EQ(got.devices[0].launches, expected.devices[0].launches);
  }
}

TEST(Analyser, RefusesWhatHasNoDevice) {
  Trace t;
  EXPECT_THROW(analyse(t), Error);
  Simulator s;
  for (int i = 0; i < 6; ++i) step(s, 4);
  Trace few = s.take();
  EXPECT_THROW(analyse(few, {.warm_up = 100}), Error);
}

}  // namespace
}  // namespace saturate::observe
