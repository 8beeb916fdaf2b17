// SPDX-License-Identifier: Apache-2.0
// Fixes around the program: transfers, cores, clocks, processes. Against the repaired program.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "observe/testing/fix_report.h"

namespace saturate::observe {
namespace {

using testing::find;
using testing::Outcome;
using testing::Program;
using testing::run;
using testing::Simulator;

double promise(const Outcome& o, FixKind kind) {
  EXPECT_TRUE(o.fixes.numbers) << o.fixes.why_not;
  const Fix* const fix = find(o.fixes, kind);
  if (fix == nullptr) ADD_FAILURE() << fix_info(kind).id << " is not in the list";
  return fix == nullptr ? 0 : fix->speedup;
}

void expect_near_the_gain(FixKind kind, const Program& broken, const Program& repaired,
                          const ClockHold& clock = {}) {
  const Outcome before = run(broken, {}, clock), after = run(repaired);
  const double gain = before.step_ns / after.step_ns, predicted = promise(before, kind);
  EXPECT_GT(gain, 1.1) << "the test plants something";
  EXPECT_NEAR(predicted / gain, 1, 0.10) << predicted << " got " << gain;
  EXPECT_LE(gain, predicted * 1.03);
}

void layers(Simulator& s, int n, int64_t kernel_ns, int64_t host_ns = 3'000) {
  for (int i = 0; i < n; ++i) {
    s.host(host_ns);
    s.kernel("sm90_gemm_bf16bf16", kernel_ns);
  }
}

TEST(FixesOutside, ManySmallTransfers) {
  const auto program = [](int copies, bool wait) {
    return [=](Simulator& s) {
      for (int i = 0; i < copies; ++i) {
        if (i > 0) s.host(3'000);
        s.copy_in((1 << 20) / copies, copies == 1 ? 22'000 : 1'500, false);
      }
      layers(s, 20, 50'000);
      if (wait) s.synchronize();
    };
  };
  expect_near_the_gain(FixKind::transfers, program(200, true), program(1, true));
  EXPECT_EQ(promise(run(program(1, true)), FixKind::transfers), 1) << "one large one is joined";
}

TEST(FixesOutside, AThreadWithoutACore) {
  const auto program = [](int64_t ready_ns) {
    return [=](Simulator& s) {
      for (int i = 0; i < 20; ++i) {
        s.wait(SpanKind::runnable, "", ready_ns / 20);
        layers(s, 2, 40'000);
      }
      s.synchronize();
    };
  };
  expect_near_the_gain(FixKind::cores, program(3'000'000), program(0));
  double last = 0;
  for (const int64_t ns : {0, 200'000, 1'000'000, 4'000'000}) {
    const double now = promise(run(program(ns)), FixKind::cores);
    EXPECT_GE(now, last * 0.999);
    last = now;
  }
}

TEST(FixesOutside, ClocksThatAreHeldDown) {
  const auto program = [](double speed, bool matrix) {
    return [=](Simulator& s) {
      if (matrix) layers(s, 40, static_cast<int64_t>(100'000 / speed));
      for (int i = 0; i < 20; ++i) s.kernel("vectorized_elementwise_kernel", 60'000);
    };
  };
  ClockHold held;
  held.speed = 0.7;
  held.evidence = "power cap";
  expect_near_the_gain(FixKind::clocks, program(0.7, true), program(1, true), held);
  EXPECT_EQ(promise(run(program(0.7, false), {}, held), FixKind::clocks), 1) << "memory-bound";
  double last = 10;
  for (const double speed : {0.3, 0.6, 0.9, 1.0}) {
    held.speed = speed;
    const double now = promise(run(program(0.7, true), {}, held), FixKind::clocks);
    EXPECT_LT(now, last) << "the slower the clock, the more there is to win";
    last = now;
  }
  EXPECT_EQ(last, 1) << "nothing held";
}

TEST(FixesOutside, TheReasonOfAClockNamesTheAction) {
  const auto action = [](const ClockHold& held) {
    const Outcome o = run([](Simulator& s) { layers(s, 40, 100'000); }, {}, held);
    return find(o.fixes, FixKind::clocks)->action;
  };
  ClockHold held;
  held.speed = 0.5;
  held.power = true;
  EXPECT_NE(action(held).find("nvidia-smi -pl"), std::string::npos);
  held.settings = true;
  EXPECT_NE(action(held).find("nvidia-smi -rgc"), std::string::npos);
  held.supply = true;
  EXPECT_NE(action(held).find("power supply"), std::string::npos);
  held.heat = true;
  EXPECT_NE(action(held).find("fans"), std::string::npos);
}

TEST(FixesOutside, SeveralProcessesFillADeviceThatIdles) {
  const auto idle = [](int64_t host_ns) {
    return run([=](Simulator& s) {
      layers(s, 10, 100'000);
      s.synchronize();
      s.host(host_ns);
    });
  };
  EXPECT_NEAR(promise(idle(4'000'000), FixKind::processes), 2, 1e-6);
  // A third idle: two processes have the device busy all the time.
  EXPECT_NEAR(promise(idle(500'000), FixKind::processes), 1.5, 0.06);
  EXPECT_LT(promise(run([](Simulator& s) { layers(s, 60, 200'000); }), FixKind::processes), kWorth);
  for (const int64_t host : {100'000, 500'000}) {
    const Outcome o = idle(host);
    const bool offered = std::any_of(o.fixes.worth.begin(), o.fixes.worth.end(),
                                     [](const Fix& f) { return f.kind == FixKind::processes; });
    EXPECT_EQ(offered, host == 500'000) << "a tenth is not worth a second process";
  }
  double last = 0;
  for (const int64_t host : {0, 100'000, 400'000, 900'000, 5'000'000}) {
    const double now = promise(idle(host), FixKind::processes);
    EXPECT_GE(now, last * 0.999);
    last = now;
  }
}

}  // namespace
}  // namespace saturate::observe
