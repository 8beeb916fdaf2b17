// SPDX-License-Identifier: Apache-2.0
#include "observe/read/waits.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "observe/analyse/analyser.h"
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

// Two kinds of pauses; samples of the stack find the thread at work in one and asleep in the other.
TEST(PlaceWaits, APauseInWhichTheThreadRunsHoldsNoSleep) {
  Trace t = calls_at({0, 10, 15, 25, 30, 40, 45, 55, 60, 70, 75});
  for (size_t i = 1; i < t.calls.size(); i += 2) t.calls[i].name = t.names.add("cudaMemcpyAsync");
  for (int64_t ms = 0; ms < 75; ++ms) {
    const bool asleep = ms % 15 >= 10;  // between a copy and the next launch
    t.samples.push_back({ms * kMs + 500'000, ms * kMs + 500'000, 1, 0, kNoStack, 0, 0, kNoStack,
                         asleep ? HostState::blocked : HostState::running});
  }
  sleep(t, 0, 9);  // of one look at three steps: where it slept is not known
  sleep(t, 30, 36);
  place_waits(t);
  ASSERT_FALSE(t.spans.empty());
  int64_t slept = 0;
  for (const HostSpan& s : t.spans) {
    slept += s.end_ns - s.start_ns;
    EXPECT_GE(s.start_ns % (15 * kMs), 10 * kMs) << s.start_ns;
  }
  EXPECT_EQ(slept, 15 * kMs);
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

// A thread that takes orders issues a copy and a graph every 20 ms and sleeps in between, while the
// process's first thread runs for 12 ms and waits for 6.
Trace orders(SpanKind first_waits) {
  Trace t;
  const uint32_t first = t.threads.add({7, 7}), dispatch = t.threads.add({7, 9}),
                 stream = t.streams.add({7, 0, 1, 13});
  int64_t correlation = 0;
  const auto issue = [&](int64_t at, int64_t ns, const char* name, OpKind kind) {
    t.calls.push_back({at, at + 10'000, ++correlation, t.names.add(name), dispatch});
    DeviceOp op;
    op.start_ns = at + 12'000;
    op.end_ns = op.start_ns + ns;
    op.correlation = correlation;
    op.stream = stream;
    op.kind = kind;
    if (kind == OpKind::copy) op.copy = CopyKind::host_to_device;
    t.ops.push_back(op);
  };
  for (int64_t i = 0; i < 40; ++i) {
    const int64_t at = i * 20 * kMs;
    issue(at, 100'000, "cuMemcpyHtoDAsync_v2", OpKind::copy);
    issue(at + 20'000, kMs, "cuGraphLaunch", OpKind::graph);
    t.spans.push_back({at + 60'000, at + 20 * kMs, t.names.add("blocked in the kernel"), dispatch,
                       SpanKind::blocked});
    t.spans.push_back(
        {at + 2 * kMs, at + 8 * kMs, t.names.add("/data/part-0"), first, first_waits});
  }
  t.sort();
  place_waits(t);
  follow_deciders(t);
  mark_loader_waits(t);
  return t;
}

TEST(Deciders, IdleTimeIsTheirs) {
  const auto shares = [](SpanKind first_waits) {
    Trace t = orders(first_waits);
    const Analysis a = analyse(t);
    EXPECT_NEAR(a.steps.median_ns, 20e6, 1e4) << a.steps.rule;
    EXPECT_GE(a.steps.count, 37);
    std::map<Leaf, double> of;
    for (size_t l = 0; l < kLeaves; ++l)
      of[static_cast<Leaf>(l)] = static_cast<double>(a.devices[0].budget.ns[l]) /
                                 static_cast<double>(a.devices[0].budget.total_ns());
    return of;
  };
  // Of 20 ms: 1.1 busy, 6 in which the first thread waits, the rest its own code. What it reads
  // before a copy to the device is its data.
  auto reads = shares(SpanKind::file_read), writes = shares(SpanKind::file_write);
  EXPECT_NEAR(reads[Leaf::host_code] + reads[Leaf::launch], 12.9 / 20, 0.02);
  EXPECT_NEAR(reads[Leaf::loader], 6.0 / 20, 0.02);
  EXPECT_NEAR(writes[Leaf::host_code] + writes[Leaf::launch], 12.9 / 20, 0.02);
  EXPECT_NEAR(writes[Leaf::file_write], 6.0 / 20, 0.02);
  EXPECT_NEAR(writes[Leaf::loader] + writes[Leaf::blocked], 0, 0.01);
}

TEST(Deciders, AFirstThreadThatIsNotKnownChangesNothing) {
  Trace t = calls_at({0, 20});
  t.threads.add({1, 1});
  Trace other;
  const uint32_t thread = other.threads.add({1, 5});
  for (HostCall c : t.calls) {
    c.thread = thread;
    c.name = other.names.add("cudaLaunchKernel");
    other.calls.push_back(c);
  }
  sleep(other, 2, 12);
  follow_deciders(other);
  EXPECT_EQ(other.spans.size(), 1u);
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

// Accelerate's loop asks for the next batch before it hands out the one that it copied already.
TEST(LoaderWaits, AreWhereTheStackShowsTheLoader) {
  Trace t = calls_at({0, 20, 40});  // launches; nothing is copied
  sleep(t, 2, 18);
  sleep(t, 22, 38);
  const auto frame = [&](uint32_t caller, const char* function, const char* file) {
    return t.stacks.add({caller, t.names.add(function), t.names.add(file)});
  };
  const uint32_t loop = frame(kNoStack, "train", "cv_example.py");
  const uint32_t loader = frame(frame(loop, "_MultiProcessingDataLoaderIter._try_get_data",
                                      "/site-packages/torch/utils/data/dataloader.py"),
                                "select", "selectors.py");
  const uint32_t other = frame(loop, "select", "selectors.py");
  for (const auto& [ms, stack] :
       {std::pair{5, loader}, {10, loader}, {15, other}, {25, other}, {30, loader}, {35, other}})
    t.samples.push_back({ms * kMs, ms * kMs, 1, 0, stack, 0, 0, kNoStack, HostState::blocked});
  t.sort();
  mark_loader_waits(t);
  ASSERT_EQ(t.spans.size(), 2u);
  EXPECT_EQ(t.spans[0].kind, SpanKind::loader);
  EXPECT_EQ(t.spans[1].kind, SpanKind::blocked);
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
