// SPDX-License-Identifier: Apache-2.0
#include "observe/read/staged_copies.h"

#include <gtest/gtest.h>

#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/analyse/fixes.h"
#include "observe/report/diagnosis.h"
#include "observe/testing/fix_report.h"
#include "observe/testing/stacks.h"

namespace saturate::observe {
namespace {

using testing::Simulator;
using testing::stack_of;

constexpr int64_t kMs = 1'000'000;
constexpr const char* kMain = "/home/a/train.py";

// Steps of 4 ms of work before which a thread of the library copies 32 MiB into pinned memory for
// 8 ms and sends them: calls of thread 9, which issues no kernel.
Trace program(int steps = 40) {
  Simulator s;
  for (int i = 0; i < steps; ++i) {
    s.host(8 * kMs);
    s.copy_in(32 << 20, 600'000, false);
    s.graph(1, 4 * kMs);
    s.synchronize();
  }
  Trace t = s.take();
  const uint32_t main = t.threads.add({0, 0}), sender = t.threads.add({0, 9});
  for (HostCall& c : t.calls) {
    const bool copies = t.names[c.name].find("emcpy") != std::string::npos;
    c.thread = copies ? sender : main;
  }
  return t;
}

// One sample of the first thread each millisecond.
void add_samples(Trace& t, uint32_t stack, HostState state, const char* wait) {
  const uint32_t main = t.threads.add({0, 0}), name = t.names.add(wait);
  for (int64_t at = t.calls.front().start_ns - 8 * kMs; at < t.ops.back().end_ns; at += kMs)
    t.samples.push_back({at, at, 1, main, stack, name, 0, kNoStack, state});
}

int64_t staged(const Trace& t) {
  int64_t n = 0;
  for (const HostCall& c : t.calls) n += t.names[c.name] == kStagedCopy;
  return n;
}

TEST(StagedCopies, AProgramThatSleepsInItsCallIsCopiedFor) {
  Trace t = program();
  add_samples(t, stack_of(t, {{"step", kMain, 7, "jnp.dot(x, basis)"}}), HostState::blocked,
              "futex");
  add_staged_copies(t);
  EXPECT_GE(staged(t), 39);
  for (const HostCall& c : t.calls)
    if (t.names[c.name] == kStagedCopy) {
      EXPECT_NEAR(static_cast<double>(c.end_ns - c.start_ns), 8e6, 0.3e6);
    }
  const Diagnosis g = diagnose(*make_capture(t), "x");
  EXPECT_EQ(g.verdict.id, "copy_bound") << g.verdict.why;
  const Fix* copies = testing::find(g.fixes, FixKind::copies);
  ASSERT_NE(copies, nullptr);
  EXPECT_NEAR(copies->speedup, 12.6 / 4.0, 0.3);
}

TEST(StagedCopies, DataThatTheProgramMakesAreNot) {
  Trace works = program();
  add_samples(works, stack_of(works, {{"make", kMain, 3, "sorted(x)"}}), HostState::running, "");
  add_staged_copies(works);
  EXPECT_EQ(staged(works), 0) << "it runs";

  Trace waits = program();
  add_samples(waits,
              stack_of(waits, {{"step", kMain, 7, "batches.get()"},
                               {"get", "/usr/lib/python3.12/queue.py", 171}}),
              HostState::blocked, "futex");
  add_staged_copies(waits);
  EXPECT_EQ(staged(waits), 0) << "it waits for another thread of Python";

  Trace reads = program();
  add_samples(reads, stack_of(reads, {{"load", kMain, 3, "file.read()"}}), HostState::blocked,
              "read");
  add_staged_copies(reads);
  EXPECT_EQ(staged(reads), 0) << "it reads a file";

  Trace few = program(6);
  add_samples(few, stack_of(few, {{"step", kMain, 7, "jnp.dot(x, basis)"}}), HostState::blocked,
              "futex");
  add_staged_copies(few);
  EXPECT_EQ(staged(few), 0);

  Trace alone = program();
  add_staged_copies(alone);
  EXPECT_EQ(staged(alone), 0) << "no samples";
}

TEST(StagedCopies, ACallMaySendSeveralArrays) {
  Trace t = program();
  const std::vector<DeviceOp> once = t.ops;
  for (const DeviceOp& op : once)
    if (op.kind == OpKind::copy) t.ops.push_back(op);
  t.sort();
  add_samples(t, stack_of(t, {{"step", kMain, 7, "jnp.dot(x, basis)"}}), HostState::blocked,
              "futex");
  add_staged_copies(t);
  EXPECT_GE(staged(t), 39);
}

// A thread that issues kernels as well is the program's own.
TEST(StagedCopies, AThreadThatComputesDoesNotServe) {
  Trace t = program();
  const uint32_t main = t.threads.add({0, 0});
  for (HostCall& c : t.calls) c.thread = main;
  add_samples(t, stack_of(t, {{"step", kMain, 7, "jnp.dot(x, basis)"}}), HostState::blocked,
              "futex");
  add_staged_copies(t);
  EXPECT_EQ(staged(t), 0);
}

}  // namespace
}  // namespace saturate::observe
