// SPDX-License-Identifier: Apache-2.0
// Programs recorded in windows against the same recorded as a whole.
#include "observe/read/seams.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/testing/temp_folder.h"
#include "observe/read/sat_reader.h"
#include "observe/read/sat_writer.h"
#include "observe/testing/fix_report.h"
#include "observe/testing/windows.h"

namespace saturate::observe {
namespace {

using testing::Machine;
using testing::Simulator;

constexpr int64_t kMs = 1'000'000;

struct Seen {
  Analysis analysis;
  FixReport fixes;
  double share(Leaf leaf) const {
    const Budget& b = analysis.devices[0].budget;
    return static_cast<double>(b[leaf]) / static_cast<double>(b.total_ns());
  }
};

Seen seen_in(Trace t) {
  cut_pauses(t);
  t.sort();
  Seen seen;
  seen.analysis = analyse(t);
  seen.fixes = find_fixes(testing::replay_of(t, seen.analysis), seen.analysis);
  return seen;
}

Trace program(const std::function<void(Simulator&)>& step, int steps, Machine machine = {}) {
  Simulator s(machine);
  for (int i = 0; i < steps; ++i) step(s);
  return s.take();
}

void kernels(Simulator& s, int n, int64_t ns) {
  s.host(20'000);
  s.kernel("first", ns);
  for (int k = 1; k < n; ++k) s.kernel("sm90_gemm_bf16bf16", ns);
}

// All that follows from the windows must be what follows from the whole.
void expect_same(const Trace& whole, const Trace& windows, double tolerance) {
  const Seen a = seen_in(whole), b = seen_in(windows);
  ASSERT_TRUE(a.fixes.numbers) << a.fixes.why_not;
  ASSERT_TRUE(b.fixes.numbers) << b.fixes.why_not;
  EXPECT_GT(b.analysis.steps.count, 20);
  EXPECT_NEAR(b.analysis.steps.median_ns / a.analysis.steps.median_ns, 1, tolerance);
  EXPECT_NEAR(b.fixes.replay_step_ns / a.fixes.replay_step_ns, 1, tolerance);
  EXPECT_LT(b.fixes.unexplained, a.fixes.unexplained + tolerance);
  for (const Leaf leaf : {Leaf::dependency, Leaf::unknown, Leaf::host_code, Leaf::launch,
                          Leaf::sync, Leaf::after_sync, Leaf::tensor}) {
    EXPECT_NEAR(b.share(leaf), a.share(leaf), tolerance) << leaf_info(leaf).id;
  }
  for (const auto* list : {&a.fixes.worth, &a.fixes.not_worth}) {
    for (const Fix& fix : *list) {
      const Fix* same = testing::find(b.fixes, fix.kind);
      if (same == nullptr) continue;
      EXPECT_NEAR(same->speedup / fix.speedup, 1, tolerance) << fix_info(fix.kind).id;
    }
  }
}

TEST(Seams, AHostFarAheadWaitsForNothing) {
  Machine machine;
  machine.queue_depth = 300;
  const Trace whole = program([](Simulator& s) { kernels(s, 20, 100'000); }, 1500, machine);
  expect_same(whole, testing::record_in_windows(whole, 300 * kMs, 200 * kMs, 400 * kMs), 0.02);
}

TEST(Seams, AWaitThatAPauseCutIsNoHostCode) {
  const auto step = [](Simulator& s) {
    kernels(s, 100, 100'000);
    s.synchronize();
  };
  const Trace whole = program(step, 400);
  expect_same(whole, testing::record_in_windows(whole, 290 * kMs, 210 * kMs, 410 * kMs), 0.02);
}

TEST(Seams, AHostThatIsNotAheadLosesNothing) {
  const auto step = [](Simulator& s) {
    kernels(s, 50, 3'000);
    s.host(200'000);
  };
  const Trace whole = program(step, 4000);
  const Trace windows = testing::record_in_windows(whole, 300 * kMs, 200 * kMs, 400 * kMs);
  expect_same(whole, windows, 0.02);
  Trace cut = windows;
  cut_pauses(cut);
  EXPECT_GT(cut.ops.size(), windows.ops.size() - 10);
}

// As the recorder writes it: what has ended, every 250 ms, and a pause when it is over.
std::string write(const std::string& path, const Trace& windows) {
  SatWriter writer(path);
  Trace part = windows;
  const int64_t from = windows.calls.front().start_ns, to = windows.ops.back().end_ns;
  for (int64_t low = INT64_MIN, high = from; low < to; low = high, high += 250 * kMs) {
    const auto pick = [&](const auto& in, auto& out) {
      out.clear();
      for (const auto& r : in) {
        if (r.end_ns > low && r.end_ns <= high) out.push_back(r);
      }
    };
    pick(windows.ops, part.ops);
    pick(windows.calls, part.calls);
    part.pauses.clear();
    for (const Pause& p : windows.pauses) {
      if (p.end_ns <= high) part.pauses.push_back(p);
    }
    writer.write(part, high);
  }
  writer.close(part);
  return path;
}

TEST(Seams, AFileReadInPiecesIsJoinedAlike) {
  const saturate::testing::TempFolder folder;
  Machine machine;
  machine.queue_depth = 300;
  const Trace whole = program([](Simulator& s) { kernels(s, 20, 100'000); }, 5000, machine);
  Trace windows = testing::record_in_windows(whole, 300 * kMs, 700 * kMs, 900 * kMs);
  std::erase_if(windows.pauses,  // never over, so never written
                [&](const Pause& p) { return p.end_ns >= windows.ops.back().end_ns; });
  const Seen expected = seen_in(windows);
  const std::string path = write(folder / "1.sat", windows);
  const auto capture = read_sat(open_input(path), 2000);
  Analyser analyser;
  int pieces = 1;
  for (; capture->read_window(); ++pieces) analyser.consume(capture->trace(), false);
  analyser.consume(capture->trace(), true);
  const Analysis got = analyser.finish(capture->trace());
  EXPECT_GT(pieces, 3);
  EXPECT_EQ(got.records, expected.analysis.records);
  EXPECT_EQ(got.steps.count, expected.analysis.steps.count);
  EXPECT_EQ(got.devices[0].budget, expected.analysis.devices[0].budget);
}

TEST(Seams, AWindowThatEndsBeforeTheOldWorkDoesIsLeftOut) {
  Machine machine;
  machine.queue_depth = 1000;  // 0.1 s
  const Trace whole = program([](Simulator& s) { kernels(s, 20, 100'000); }, 1500, machine);
  Trace windows = testing::record_in_windows(whole, 500 * kMs, 150 * kMs, 400 * kMs);
  cut_pauses(windows);
  ASSERT_FALSE(windows.notes.empty());
  EXPECT_NE(windows.notes.back().find("windows of the recording left out"), std::string::npos);
  EXPECT_LT(windows.ops.back().end_ns - windows.ops.front().start_ns, 600 * kMs);
}

TEST(Seams, WhatBeganInAPauseIsLeftOut) {
  Trace t;
  const uint32_t stream = t.streams.add({1, 0, 0, 7}), thread = t.threads.add({1, 1});
  for (const int64_t start : {10, 150, 260}) {
    DeviceOp op;
    op.start_ns = start;
    op.end_ns = start + 20;
    op.stream = stream;
    t.ops.push_back(op);
    t.calls.push_back({start - 5, start, 0, 0, thread});
  }
  t.spans.push_back({90, 210, 0, thread, SpanKind::blocked});
  t.spans.push_back({120, 130, 0, thread, SpanKind::blocked});
  t.pauses = {{100, 200}};
  cut_pauses(t);
  ASSERT_EQ(t.ops.size(), 2u);
  EXPECT_EQ(t.ops[1].start_ns, 160);
  EXPECT_EQ(t.ops[1].end_ns, 180);
  EXPECT_EQ(t.calls.size(), 2u);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.spans[0].start_ns, 90);
  EXPECT_EQ(t.spans[0].end_ns, 110);
  EXPECT_TRUE(t.pauses.empty());
}

}  // namespace
}  // namespace saturate::observe
