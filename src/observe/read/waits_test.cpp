// SPDX-License-Identifier: Apache-2.0
#include "observe/read/waits.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

constexpr int64_t kMs = 1'000'000;

// A thread that makes a call of 1 us at each of the given times, in ms.
Trace calls_at(std::initializer_list<int64_t> times) {
  Trace t;
  const uint32_t thread = t.threads.add({1, 1}), name = t.names.add("cudaLaunchKernel");
  for (const int64_t ms : times) {
    HostCall c;
    c.start_ns = ms * kMs;
    c.end_ns = c.start_ns + 1'000;
    c.name = name;
    c.thread = thread;
    t.calls.push_back(c);
  }
  return t;
}

void sleep(Trace& t, int64_t from_ms, int64_t to_ms) {
  t.spans.push_back(
      {from_ms * kMs, to_ms * kMs, t.names.add("blocked in the kernel"), 0, SpanKind::blocked});
}

TEST(PlaceWaits, AWaitMovesIntoThePauseThatHasRoom) {
  Trace t = calls_at({0, 1, 2, 20, 21});
  sleep(t, 1, 11);  // one sample later the thread is known to have slept for 10 ms
  place_waits(t);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_GE(t.spans[0].start_ns, 2 * kMs);
  EXPECT_EQ(t.spans[0].end_ns - t.spans[0].start_ns, 10 * kMs);
}

TEST(PlaceWaits, ALongWaitFillsSeveralPausesAndNoneTwice) {
  Trace t = calls_at({0, 4, 8});
  sleep(t, 0, 6);
  sleep(t, 2, 8);
  place_waits(t);
  int64_t slept = 0;
  ASSERT_EQ(t.spans.size(), 2u);
  for (const HostSpan& s : t.spans) slept += s.end_ns - s.start_ns;
  EXPECT_EQ(slept, 8 * kMs - 2'000);  // the pauses, whole
  EXPECT_LE(t.spans[0].end_ns, t.spans[1].start_ns);
}

TEST(PlaceWaits, WaitsOfSeveralKindsShareAPauseAndKeepTheirs) {
  Trace t = calls_at({0, 20});
  const auto wait = [&](int64_t from_ms, int64_t to_ms, SpanKind kind, const char* name) {
    t.spans.push_back({from_ms * kMs, to_ms * kMs, t.names.add(name), 0, kind});
  };
  wait(2, 6, SpanKind::file_write, "/a");
  wait(6, 8, SpanKind::file_write, "/a");
  wait(8, 11, SpanKind::lock, "held");
  place_waits(t);
  ASSERT_EQ(t.spans.size(), 2u);
  EXPECT_EQ(t.spans[0].kind, SpanKind::file_write);
  EXPECT_EQ(t.names[t.spans[0].name], "/a");
  EXPECT_EQ(t.spans[0].end_ns - t.spans[0].start_ns, 6 * kMs);
  EXPECT_EQ(t.spans[1].kind, SpanKind::lock);
  EXPECT_EQ(t.spans[1].start_ns, t.spans[0].end_ns);
  EXPECT_EQ(t.spans[1].end_ns - t.spans[1].start_ns, 3 * kMs);
}

TEST(PlaceWaits, AThreadThatCallsAllTheTimeDoesNotSleep) {
  Trace t;
  const uint32_t thread = t.threads.add({1, 1}), name = t.names.add("cudaLaunchKernel");
  for (int64_t i = 0; i < 1'000; ++i) {
    HostCall c;
    c.start_ns = i * 100'000;
    c.end_ns = c.start_ns + 5'000;
    c.name = name;
    c.thread = thread;
    t.calls.push_back(c);
  }
  sleep(t, 40, 45);
  place_waits(t);
  EXPECT_TRUE(t.spans.empty());
}

TEST(PlaceWaits, ThreadsWithoutCallsKeepTheirs) {
  Trace t = calls_at({0});
  t.spans.push_back({3 * kMs, 5 * kMs, t.names.add("blocked in the kernel"), t.threads.add({1, 2}),
                     SpanKind::blocked});
  place_waits(t);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.spans[0].start_ns, 3 * kMs);
}

TEST(LoaderWaits, AreThoseBeforeACopyIn) {
  testing::Simulator s;
  for (int i = 0; i < 3; ++i) {
    s.wait(SpanKind::blocked, "poll", 2'000'000);
    s.copy_in(1 << 20, 50'000, true);
    s.kernel("kernel", 100'000);
    s.wait(SpanKind::blocked, "futex", 1'000'000);
    s.kernel("kernel", 100'000);
    s.synchronize();
  }
  Trace t = s.take();
  mark_loader_waits(t);
  for (const HostSpan& span : t.spans)
    EXPECT_EQ(span.kind, t.names[span.name] == "poll" ? SpanKind::loader : SpanKind::blocked);
}

// What the loader's own code does around the wait belongs to it.
TEST(LoaderWaits, TakeTheWholePauseWhenTheyAreMostOfIt) {
  for (const int64_t code_ns : {500'000, 1'500'000}) {
    testing::Simulator s;
    for (int i = 0; i < 3; ++i) {
      s.host(code_ns);
      s.wait(SpanKind::blocked, "poll", 2'000'000);
      s.host(code_ns);
      s.copy_in(1 << 20, 50'000, true);
      s.kernel("kernel", 100'000);
    }
    Trace t = s.take();
    mark_loader_waits(t);
    ASSERT_EQ(t.spans.size(), 3u);
    const int64_t whole = code_ns < 1'000'000 ? 2 * code_ns : 0;
    EXPECT_EQ(t.spans[1].kind, SpanKind::loader);
    EXPECT_LT(std::abs(t.spans[1].end_ns - t.spans[1].start_ns - 2'000'000 - whole), 20'000);
  }
}

}  // namespace
}  // namespace saturate::observe
