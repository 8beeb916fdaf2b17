// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/host_timeline.h"

#include <gtest/gtest.h>

#include <chrono>

namespace saturate::observe {
namespace {

// Ranks of one program number their calls alike. Their numbers, each a run, must not make one long
// run: every search in it would walk to its end (two minutes here instead of 0.1 s).
TEST(HostTimeline, CallsOfManyProcessesAreFoundQuickly) {
  constexpr uint32_t kProcesses = 32;
  constexpr int64_t kCalls = 20'000;
  Trace t;
  const uint32_t launch = t.names.add("cudaLaunchKernel");
  for (uint32_t p = 0; p < kProcesses; ++p) {
    const uint32_t thread = t.threads.add({4000 + 29 * p, 1});
    const uint32_t stream = t.streams.add({4000 + 29 * p, 0, 1, 7});
    for (int64_t i = 0; i < kCalls; ++i) {
      const int64_t start = (p * kCalls + i) * 1'000;
      t.calls.push_back({start, start + 100, 100 + i, launch, thread});
      DeviceOp op;
      op.start_ns = start + 200, op.end_ns = start + 900, op.correlation = 100 + i;
      op.stream = stream;
      t.ops.push_back(op);
    }
  }
  const auto begin = std::chrono::steady_clock::now();
  const HostTimeline host(t);
  for (size_t i = 0; i < t.ops.size(); ++i) ASSERT_EQ(host.issuer(t.ops[i]), i);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

// A launch that takes long because its thread has no core is not slow by itself; a wait for the device
// is one with or without a core.
TEST(HostTimeline, LaunchWithoutACoreIsNoLaunch) {
  Trace t;
  const uint32_t thread = t.threads.add({4000, 1});
  t.calls.push_back({1'000, 9'000, 1, t.names.add("cudaMemsetAsync"), thread});
  t.calls.push_back({10'000, 19'000, 2, t.names.add("cudaStreamSynchronize"), thread});
  const uint32_t ready = t.names.add("ready, without a core");
  t.spans.push_back({2'000, 8'000, ready, thread, SpanKind::runnable});
  t.spans.push_back({11'000, 18'000, ready, thread, SpanKind::runnable});
  const HostTimeline host(t);
  std::vector<std::pair<Leaf, int64_t>> found;
  for (const HostPiece& p : host.thread(thread)) found.emplace_back(p.leaf, p.end_ns - p.start_ns);
  const std::vector<std::pair<Leaf, int64_t>> expected = {
      {Leaf::launch, 1'000}, {Leaf::runnable, 6'000}, {Leaf::launch, 1'000}, {Leaf::sync, 9'000}};
  EXPECT_EQ(found, expected);
}

}  // namespace
}  // namespace saturate::observe
