// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/attribute.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

std::vector<Segment> segments_of(const Trace& trace, uint32_t device, int64_t from, int64_t to) {
  std::vector<Segment> all;
  attribute(trace, HostTimeline(trace), device, from, to,
            [&](const Segment& s) { all.push_back(s); });
  return all;
}

Budget budget_of(const Trace& trace, uint32_t device, int64_t from, int64_t to) {
  Budget b;
  for (const Segment& s : segments_of(trace, device, from, to)) b[s.leaf] += s.end_ns - s.start_ns;
  return b;
}

// From the first to the end of the last operation.
Budget budget_of(const Trace& trace) {
  int64_t end = 0;
  for (const DeviceOp& op : trace.ops) end = std::max(end, op.end_ns);
  return budget_of(trace, 0, trace.ops.front().start_ns, end);
}

// Anything at all: streams and threads that overlap, calls that nest, operations without a call.
Trace random_trace(uint32_t seed) {
  std::mt19937 random(seed);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  const char* kernels[] = {"sm90_xmma_gemm_bf16bf16", "vectorized_elementwise_kernel",
                           "ncclDevKernel_AllReduce", "mystery", "sgemm_128"};
  const char* calls[] = {"cudaLaunchKernel", "cudaMemcpyAsync",       "cudaMemcpy",
                         "cudaMalloc",       "cudaDeviceSynchronize", "cuModuleLoadData",
                         "cudaEventRecord"};
  Trace t;
  t.devices[0] = {"a", 132};
  const int64_t n = pick(0, 60);
  for (int64_t i = 0; i < n; ++i) {
    DeviceOp op;
    op.start_ns = pick(0, 200'000);
    op.end_ns = op.start_ns + pick(0, 1) * pick(0, 40'000);
    op.correlation = pick(-1, 40);
    op.size = pick(0, 300);
    op.name = t.names.add(kernels[pick(0, 4)]);
    op.stream =
        t.streams.add({0, static_cast<uint32_t>(pick(0, 1)), 1, static_cast<uint64_t>(pick(0, 3))});
    op.kind = static_cast<OpKind>(pick(0, 3));
    op.copy = static_cast<CopyKind>(pick(0, 4));
    op.memory = static_cast<HostMemory>(pick(0, 2));
    t.ops.push_back(op);
  }
  const int64_t m = pick(0, 60);
  for (int64_t i = 0; i < m; ++i) {
    const int64_t start = pick(0, 200'000);
    t.calls.push_back({start, start + pick(0, 30'000), pick(-1, 40), t.names.add(calls[pick(0, 6)]),
                       t.threads.add({0, static_cast<uint64_t>(pick(1, 3))})});
    const int64_t from = pick(0, 200'000);
    t.spans.push_back({from, from + pick(0, 30'000), t.names.add("span"),
                       t.threads.add({0, static_cast<uint64_t>(pick(1, 3))}),
                       static_cast<SpanKind>(pick(0, 6))});
  }
  return t;
}

// The same records, names and keys in another order.
Trace permuted(const Trace& in, uint32_t seed) {
  std::mt19937 random(seed);
  Trace out;
  out.devices = in.devices;
  std::vector<size_t> order(in.records());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  for (const size_t i : order) {
    if (i < in.ops.size()) {
      DeviceOp op = in.ops[i];
      op.name = out.names.add(in.names[op.name]);
      op.stream = out.streams.add(in.streams[op.stream]);
      out.ops.push_back(op);
    } else if (i < in.ops.size() + in.calls.size()) {
      HostCall call = in.calls[i - in.ops.size()];
      call.name = out.names.add(in.names[call.name]);
      call.thread = out.threads.add(in.threads[call.thread]);
      out.calls.push_back(call);
    } else {
      HostSpan span = in.spans[i - in.ops.size() - in.calls.size()];
      span.name = out.names.add(in.names[span.name]);
      span.thread = out.threads.add(in.threads[span.thread]);
      out.spans.push_back(span);
    }
  }
  return out;
}

TEST(Attribute, SegmentsTileTheWindowExactly) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    Trace t = random_trace(seed);
    t.sort();
    for (const uint32_t device : {0u, 1u}) {
      for (const auto& [from, to] : {std::pair<int64_t, int64_t>{0, 250'000}, {30'001, 99'999}}) {
        int64_t at = from;
        for (const Segment& s : segments_of(t, device, from, to)) {
          ASSERT_EQ(s.start_ns, at) << "seed " << seed;
          ASSERT_LT(s.start_ns, s.end_ns);
          at = s.end_ns;
        }
        ASSERT_EQ(at, to) << "seed " << seed;
        ASSERT_EQ(budget_of(t, device, from, to).total_ns(), to - from);
      }
    }
  }
}

// Busy time against the union computed nanosecond by nanosecond.
TEST(Attribute, BusyIsTheUnionOfAllStreams) {
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Trace t = random_trace(seed);
    t.sort();
    std::vector<bool> busy(250'000);
    for (const DeviceOp& op : t.ops) {
      if (t.streams[op.stream].device != 0) continue;
      for (int64_t i = op.start_ns; i < op.end_ns; ++i) busy[static_cast<size_t>(i)] = true;
    }
    EXPECT_EQ(budget_of(t, 0, 0, 250'000).busy_ns(), std::count(busy.begin(), busy.end(), true));
  }
}

TEST(Attribute, OrderOfRecordsDoesNotMatter) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    Trace t = random_trace(seed);
    Trace other = permuted(t, seed + 1);
    t.sort();
    other.sort();
    for (const uint32_t device : {0u, 1u})
      ASSERT_EQ(budget_of(t, device, 0, 250'000), budget_of(other, device, 0, 250'000)) << seed;
  }
}

// Cutting at the start of any operation changes nothing: what windows of long captures rely on.
TEST(Attribute, WindowsAddUp) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    Trace t = random_trace(seed);
    t.sort();
    const Budget whole = budget_of(t, 0, 0, 250'000);
    for (const DeviceOp& op : t.ops) {
      if (t.streams[op.stream].device != 0) continue;
      Budget sum = budget_of(t, 0, 0, op.start_ns);
      sum += budget_of(t, 0, op.start_ns, 250'000);
      ASSERT_EQ(sum, whole) << seed;
    }
  }
}

TEST(Attribute, LaunchBoundLoop) {
  Simulator s;
  for (int i = 0; i < 100; ++i) s.kernel("mystery", 1'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::tiny], 100'000);
  // Every kernel but the first: 4 us of call, of which the last kernel covers 1 us; it starts
  // 2.5 us after its call.
  EXPECT_EQ(b[Leaf::launch], 99 * 500);
  EXPECT_EQ(b[Leaf::launch_latency], 99 * 2'500);
  EXPECT_EQ(b.total_ns(), 100'000 + 99 * 3'000);
}

TEST(Attribute, HostCodeAndSynchronisation) {
  Simulator s;
  s.kernel("sgemm", 50'000);
  s.synchronize();  // returns 6 us after the kernel
  s.host(30'000);
  s.kernel("sgemm", 50'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::matrix], 100'000);
  EXPECT_EQ(b[Leaf::sync], 6'000);
  EXPECT_EQ(b[Leaf::after_sync], 30'000);
  EXPECT_EQ(b[Leaf::host_code], 0);
  EXPECT_EQ(b[Leaf::launch], 4'000);
  EXPECT_EQ(b[Leaf::launch_latency], 2'500);
}

TEST(Attribute, SynchronisingAnIdleDeviceIsNoStall) {
  Simulator s;
  s.kernel("sgemm", 1'000);
  s.host(30'000);
  s.synchronize();  // 2 us, nothing to wait for
  s.host(30'000);
  s.kernel("sgemm", 50'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::sync], 2'000);
  EXPECT_EQ(b[Leaf::after_sync], 0);
  EXPECT_EQ(b[Leaf::host_code], 60'000 - 2'500 - 1'000);
}

TEST(Attribute, WaitingForDataIsToldFromOtherWaits) {
  Simulator s;
  s.kernel("sgemm", 20'000);
  s.host(22'500);
  s.wait(SpanKind::loader, "enumerate(DataLoader)", 70'000);
  s.copy_in(4096, 20'000, true);
  s.wait(SpanKind::blocked, "poll", 50'000);  // then a copy: data
  s.copy_in(4096, 20'000, true);
  s.wait(SpanKind::blocked, "futex", 40'000);  // then a kernel: not known
  s.kernel("sgemm", 20'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::loader], 120'000);
  EXPECT_EQ(b[Leaf::blocked], 40'000);
  EXPECT_EQ(b[Leaf::blocking_copy], 2 * (6'500 + 6'000));  // before the start and after the end
  EXPECT_EQ(b[Leaf::copy_in_pageable], 40'000);
}

TEST(Attribute, WaitsForFilesPeersAndLocksHaveLeavesOfTheirOwn) {
  Simulator s;
  s.kernel("sgemm", 20'000);
  s.host(22'500);
  s.wait(SpanKind::file_write, "/ckpt/model.pt", 70'000);
  s.copy_in(4096, 20'000, false);  // what comes after a checkpoint is not what it waited for
  s.host(22'500);
  s.wait(SpanKind::file_read, "/data/train.bin", 30'000);
  s.copy_in(4096, 20'000, false);
  s.host(22'500);
  s.wait(SpanKind::file_read, "/data/vocab.txt", 40'000);
  s.kernel("sgemm", 20'000);
  s.host(22'500);
  s.wait(SpanKind::network, "10.0.0.7:443", 50'000);
  s.kernel("sgemm", 20'000);
  s.host(22'500);
  s.wait(SpanKind::lock, "held by thread 12", 60'000);
  s.kernel("sgemm", 20'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::file_write], 70'000);
  EXPECT_EQ(b[Leaf::loader], 30'000);
  EXPECT_EQ(b[Leaf::file_read], 40'000);
  EXPECT_EQ(b[Leaf::network], 50'000);
  EXPECT_EQ(b[Leaf::lock], 60'000);
  EXPECT_EQ(b[Leaf::blocked], 0);
}

TEST(Attribute, AllocationAndLoadingWinOverTheLaunchAroundThem) {
  Trace t;
  const uint32_t thread = t.threads.add({0, 1}), stream = t.streams.add({0, 0, 1, 7});
  const auto op = [&](int64_t start, int64_t end, int64_t correlation) {
    DeviceOp o;
    o.start_ns = start;
    o.end_ns = end;
    o.correlation = correlation;
    o.stream = stream;
    o.name = t.names.add("sgemm");
    t.ops.push_back(o);
  };
  op(0, 20'000, -1);
  t.calls.push_back({25'000, 30'000, 8, t.names.add("cudaMalloc"), thread});
  t.calls.push_back({30'000, 60'000, 9, t.names.add("cudaLaunchKernel"), thread});
  t.calls.push_back({35'000, 50'000, 10, t.names.add("cuModuleLoadData"), thread});
  op(70'000, 90'000, 9);
  op(130'000, 150'000, 9);  // of the same call, far behind: a graph's node that waited
  t.sort();
  const Budget b = budget_of(t);
  EXPECT_EQ(b[Leaf::host_code], 5'000);
  EXPECT_EQ(b[Leaf::allocator], 5'000);
  EXPECT_EQ(b[Leaf::launch], 5'000 + 10'000);
  EXPECT_EQ(b[Leaf::code_load], 15'000);
  EXPECT_EQ(b[Leaf::launch_latency], 10'000 + 10'000);
  EXPECT_EQ(b[Leaf::dependency], 30'000);
}

TEST(Attribute, OnlyExposedCommunicationAndCopiesCount) {
  Simulator s;
  s.kernel("sm90_xmma_gemm_bf16bf16", 100'000, 7);
  s.kernel("ncclDevKernel_AllReduce", 150'000, 20);
  s.copy_in(1 << 20, 300'000, false, 21);
  const Trace t = s.take();
  const Budget b = budget_of(t);
  EXPECT_EQ(b[Leaf::tensor], 100'000);
  EXPECT_EQ(b[Leaf::communication], 150'000 - (100'000 - 4'000));
  EXPECT_EQ(b[Leaf::copy_in], 300'000 - (150'000 - 4'000));
}

TEST(Attribute, LowGridsSideBySideFillTheDevice) {
  Simulator s;
  s.kernel("my_kernel", 100'000, 7, 66);
  s.kernel("my_kernel", 100'000, 8, 66);
  s.synchronize();
  s.kernel("my_kernel", 100'000, 7, 66);
  const Trace t = s.take();
  const int64_t both = std::min(t.ops[0].end_ns, t.ops[1].end_ns) - t.ops[1].start_ns;
  ASSERT_GT(both, 50'000);
  const Budget b = budget_of(t);
  EXPECT_EQ(b[Leaf::other_kernel], both);
  EXPECT_EQ(b[Leaf::low_grid], 300'000 - 2 * both);
}

TEST(Attribute, KernelKinds) {
  Simulator s;
  s.kernel("sm90_xmma_gemm_bf16bf16", 20'000, 7, 1024);
  s.kernel("sm90_xmma_gemm_bf16bf16", 20'000, 7, 98);
  s.kernel("sm90_xmma_gemm_bf16bf16", 9'999, 7, 1024);
  s.kernel("ampere_sgemm_128x64_nn", 20'000);
  s.kernel("void at::native::vectorized_elementwise_kernel<4, AddFunctor>", 20'000);
  s.kernel("my_kernel", 20'000);
  const Budget b = budget_of(s.take());
  EXPECT_EQ(b[Leaf::tensor], 20'000);
  EXPECT_EQ(b[Leaf::low_grid], 20'000);
  EXPECT_EQ(b[Leaf::tiny], 9'999);
  EXPECT_EQ(b[Leaf::matrix], 20'000);
  EXPECT_EQ(b[Leaf::memory_bound], 20'000);
  EXPECT_EQ(b[Leaf::other_kernel], 20'000);
}

}  // namespace
}  // namespace saturate::observe
