// SPDX-License-Identifier: Apache-2.0
#include "observe/report/shared_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/testing/temp_folder.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

constexpr int64_t kTurnNs = 2'000'000;

// 30 steps of 20 kernels and a wait. Before the tenth kernel of each another program has its turn: all that follows is
// so much later, and the wait that is on so much longer.
Trace by_turns() {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 20; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
    s.synchronize();
  }
  Trace t = s.take();
  std::vector<int64_t> turns;
  for (size_t i = 9; i < t.ops.size(); i += 20) turns.push_back(t.ops[i].start_ns);
  const auto later = [&](int64_t& ns) {
    ns += kTurnNs * (std::upper_bound(turns.begin(), turns.end(), ns) - turns.begin());
  };
  for (DeviceOp& op : t.ops) later(op.start_ns), later(op.end_ns);
  for (HostCall& c : t.calls) later(c.start_ns), later(c.end_ns);
  for (HostSpan& r : t.spans) later(r.start_ns), later(r.end_ns);
  t.sort();
  return t;
}

// The run is process 1; others are on its GPU.
Counters seen(int others) {
  CounterCollector collector(1);
  Snapshot s;
  s.interval_s = 0.5;
  GpuView g;
  g.info.index = 0;
  g.info.name = "NVIDIA H200";
  s.gpus = {g};
  for (int i = 0; i <= others; ++i) {
    ProcessView p;
    p.pid = i + 1, p.seen = true;
    p.gpus.push_back({0, {}, {}});
    s.processes.push_back(p);
  }
  collector.add(s);
  return collector.finish();
}

Diagnosis diagnosed(const Counters& counters) {
  return diagnose(*make_capture(by_turns()), "run", {}, counters);
}

TEST(SharedGpu, TurnsOfOthersAreTheVerdict) {
  const Diagnosis g = diagnosed(seen(3));
  const std::optional<SharedGpu> s = shared_gpu(g);
  ASSERT_TRUE(s) << render_text(g);
  EXPECT_EQ(s->others, 3);
  EXPECT_NEAR(s->share, 0.5, 0.02);
  EXPECT_NEAR(s->mean_ns, kTurnNs, 0.02 * kTurnNs);
  EXPECT_EQ(g.verdict.id, "shared_gpu");
  const std::string words = "3 other processes are on GPU 0 too: 49% of the time";
  EXPECT_EQ(g.verdict.why.rfind(words, 0), 0u) << g.verdict.why;
  EXPECT_NE(render_text(g).find("SHARED   " + words), std::string::npos);
  EXPECT_NE(render_html(g).find("<b>Shared</b>: " + words), std::string::npos);
  EXPECT_NE(render_json(g).find("\"shared_gpu\": \"" + words), std::string::npos);
}

// Without anyone else there, the waits are of a kind that nothing explains.
TEST(SharedGpu, NobodyElseNoTurns) {
  const Diagnosis g = diagnosed(seen(0));
  EXPECT_FALSE(shared_gpu(g));
  EXPECT_EQ(g.verdict.id, "dependency_bound");
  EXPECT_EQ(render_text(g).find("SHARED"), std::string::npos);
}

// Neighbours that are idle take no turns.
TEST(SharedGpu, IdleNeighboursAreNotNamed) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 20; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
  }
  EXPECT_FALSE(shared_gpu(diagnose(*make_capture(s.take()), "run", {}, seen(3))));
}

TEST(SharedGpu, NeighboursOutliveTheCapture) {
  const saturate::testing::TempFolder folder;
  write_counters(seen(2), folder.path());
  EXPECT_EQ(read_counters(folder.path()).neighbours, (std::map<int, int>{{0, 2}}));
}

}  // namespace
}  // namespace saturate::observe
