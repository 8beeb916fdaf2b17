// SPDX-License-Identifier: Apache-2.0
#include "observe/read/number_by_order.h"

#include <gtest/gtest.h>

#include "observe/analyse/host_timeline.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

// Of each kernel the start of the call that issued it; -1 where that is not known.
std::vector<int64_t> issued(const Trace& t) {
  const HostTimeline host(t);
  std::vector<int64_t> starts;
  for (const DeviceOp& op : t.ops) {
    const uint32_t call = host.issuer(op);
    if (op.kind == OpKind::kernel) starts.push_back(call == kNone ? -1 : t.calls[call].start_ns);
  }
  return starts;
}

void forget_numbers(Trace& t) {
  for (DeviceOp& op : t.ops) {
    if (op.kind == OpKind::kernel) op.correlation = kNoCorrelation;
  }
  for (HostCall& c : t.calls) {
    if (t.names[c.name] == "cudaLaunchKernel") c.correlation = kNoCorrelation;
  }
}

Trace steps(uint32_t second_stream) {
  testing::Simulator s;
  s.synchronize();
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 7; ++k)
      s.kernel("kernel", k % 2 == 0 ? 1'000 : 40'000, k == 3 ? second_stream : 7);
    s.copy_in(4096, 2'000, true);
    s.host(3'000);
    s.synchronize();
  }
  return s.take();
}

TEST(NumberByOrder, FindsEveryLaunchBetweenWaits) {
  Trace t = steps(7);
  const std::vector<int64_t> expected = issued(t);
  forget_numbers(t);
  EXPECT_EQ(issued(t), std::vector<int64_t>(expected.size(), -1));
  number_by_order(t);
  EXPECT_EQ(issued(t), expected);
}

TEST(NumberByOrder, StaysSilentWhereOrderTellsNothing) {
  // Two streams.
  Trace t = steps(8);
  forget_numbers(t);
  number_by_order(t);
  for (const int64_t start : issued(t)) EXPECT_EQ(start, -1);
  // A launch that is missing: its stretch alone.
  t = steps(7);
  const std::vector<int64_t> expected = issued(t);
  forget_numbers(t);
  for (size_t i = 0; i < t.calls.size(); ++i) {
    if (t.names[t.calls[i].name] != "cudaLaunchKernel") continue;
    t.calls.erase(t.calls.begin() + static_cast<std::ptrdiff_t>(i));
    break;
  }
  number_by_order(t);
  const std::vector<int64_t> got = issued(t);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], i < 7 ? -1 : expected[i]) << i;
}

TEST(NumberByOrder, KnownNumbersStay) {
  Trace t = steps(7);
  const std::vector<int64_t> expected = issued(t);
  number_by_order(t);
  EXPECT_EQ(issued(t), expected);
}

}  // namespace
}  // namespace saturate::observe
