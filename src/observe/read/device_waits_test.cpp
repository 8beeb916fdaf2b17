// SPDX-License-Identifier: Apache-2.0
#include "observe/read/device_waits.h"

#include <gtest/gtest.h>

#include "observe/analyse/analyser.h"
#include "observe/analyse/fixes.h"
#include "observe/testing/fix_report.h"
#include "observe/testing/stacks.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

constexpr int64_t kMs = 1'000'000;

// Steps of 9 ms of device work that the host sleeps through without a call, then 11 ms of its own:
// as a value is shown that another thread of the library copies.
Trace shows_the_loss(int64_t late_ns, int64_t scatter_ns = 0) {
  Simulator s;
  for (int i = 0; i < 40; ++i) {
    s.copy_in(1 << 20, 50'000, false);
    s.graph(1, 9 * kMs);
    s.host(s.done_ns() - s.now_ns() + late_ns + (i * 7'919'777) % std::max<int64_t>(1, scatter_ns));
    s.copy_out(4, 2'000, false);
    s.host(11 * kMs);
  }
  return s.take();
}

int64_t waits(const Trace& t) {
  int64_t n = 0;
  for (const HostCall& c : t.calls) n += t.names[c.name] == kDeviceWait;
  return n;
}

TEST(DeviceWaits, AHostThatGoesOnAsTheWorkEndsWaitedForIt) {
  Trace t = shows_the_loss(100'000);
  add_device_waits(t);
  EXPECT_GE(waits(t), 39);
  for (const HostCall& c : t.calls) {
    if (t.names[c.name] == kDeviceWait) {
      EXPECT_NEAR(static_cast<double>(c.end_ns - c.start_ns), 9e6, 0.2e6);
    }
  }
}

TEST(DeviceWaits, AHostOfItsOwnPaceDoesNot) {
  Trace t = shows_the_loss(0, 10 * kMs);
  add_device_waits(t);
  EXPECT_EQ(waits(t), 0);
}

TEST(DeviceWaits, ASlowAnswerNeedsStacksThatSleep) {
  for (const bool sleeps : {true, false}) {
    Trace t = shows_the_loss(600'000);
    t.threads.add({0, 0});  // the process's first thread
    const uint32_t stack = testing::stack_of(t, {{"show", "/a.py", 3, "float(loss)"}});
    testing::add_samples(
        t, t.threads.add({0, 0}), 2 * kMs, [&](int64_t) { return stack; },
        sleeps ? HostState::blocked : HostState::running);
    add_device_waits(t);
    EXPECT_EQ(waits(t) > 0, sleeps);
  }
}

// A host that is ahead: the device finds its next work in the queue, so no end of a kernel is an
// end of all work.
TEST(DeviceWaits, AQueueThatIsNeverEmptyIsWaitedForByNobody) {
  Simulator s;
  for (int i = 0; i < 60; ++i) {
    for (int k = 0; k < 3; ++k) s.kernel("sm90_gemm", 5 * kMs);
    s.host(15 * kMs - 3 * 4'000);
  }
  Trace t = s.take();
  add_device_waits(t);
  EXPECT_EQ(waits(t), 0);
}

// Without the wait the host runs ahead: the doctor calls it synchronisation.
TEST(DeviceWaits, TheWaitIsTheCause) {
  Trace t = shows_the_loss(100'000);
  const uint32_t library = t.threads.add({0, 300});  // its thread copies the value
  for (const DeviceOp& op : t.ops)
    for (HostCall& c : t.calls)
      if (op.copy == CopyKind::device_to_host && c.correlation == op.correlation)
        c.thread = library;
  add_device_waits(t);
  const Analysis a = analyse(t);
  ASSERT_TRUE(a.steps.found);
  const FixReport fixes = find_fixes(testing::replay_of(t, a), a);
  ASSERT_TRUE(fixes.numbers) << fixes.why_not;
  ASSERT_FALSE(fixes.worth.empty());
  EXPECT_EQ(fixes.worth[0].kind, FixKind::syncs);
  EXPECT_NEAR(testing::find(fixes, FixKind::syncs)->speedup, 20.2 / 11.1, 0.1);
}

}  // namespace
}  // namespace saturate::observe
