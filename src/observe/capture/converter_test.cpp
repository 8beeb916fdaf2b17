// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/converter.h"

#include <gtest/gtest.h>

#include <cstring>

#include "observe/analyse/names.h"
#include "observe/testing/cubin.h"

namespace saturate::observe::cupti {
namespace {

Result name_of(uint32_t domain, uint32_t callback, const char** name) {
  static const char* runtime[] = {nullptr, "cudaLaunchKernel_v7000", "cudaGetDevice_v3020",
                                  "cudaMemcpyAsync_ptsz_v7000", "cudaStreamSynchronize_v3020"};
  static const char* driver[] = {nullptr, "cuLaunchKernelEx", "cuMemFree_v2"};
  if (domain == kDomainRuntime && callback >= 1 && callback <= 4)
    *name = runtime[callback];
  else if (domain == kDomainDriver && callback >= 1 && callback <= 2)
    *name = driver[callback];
  else
    return 1;
  return kSuccess;
}

class Conversion : public ::testing::Test {
 protected:
  Conversion() : converter(api, code, 42) { api.callback_name = name_of; }

  template <class T>
  T blank(Kind kind, uint64_t start, uint64_t end) {
    T record{};
    record.kind = kind;
    record.start = start;
    record.end = end;
    record.correlation = 9;
    return record;
  }
  template <class T>
  void add(const T& record) {
    converter.add(*reinterpret_cast<const Activity*>(&record), trace);
  }
  void call(Kind domain, uint32_t callback, uint64_t start) {
    auto a = blank<ApiActivity>(domain, start, start + 10);
    a.callback = callback;
    a.thread = 77;
    a.correlation = ++number;
    add(a);
  }

  uint32_t number = 0;
  Api api;
  KernelCode code;
  Converter converter;
  Trace trace;
};

TEST_F(Conversion, Kernels) {
  auto k = blank<KernelActivity>(kConcurrentKernel, 100, 150);
  k.device = 1, k.context = 2, k.stream = 3;
  k.grid[0] = 4, k.grid[1] = 5, k.grid[2] = 6;
  k.block[0] = 32, k.block[1] = 2, k.block[2] = 1;
  k.name = "_Z5firstPf";
  add(k);
  ASSERT_EQ(trace.ops.size(), 1u);
  const DeviceOp& op = trace.ops[0];
  EXPECT_EQ(op.kind, OpKind::kernel);
  EXPECT_EQ(op.start_ns, 100);
  EXPECT_EQ(op.end_ns, 150);
  EXPECT_EQ(op.size, 120);
  EXPECT_EQ(op.block_threads, 64u);
  EXPECT_EQ(op.correlation, 9);
  EXPECT_EQ(trace.names[op.name], "first(float*)");
  EXPECT_EQ(trace.streams[op.stream], (StreamKey{42, 1, 2, 3}));
}

// What computes in float64 has that in its name, where the name says nothing else.
TEST_F(Conversion, KernelsHaveTheTypeThatTheirCodeShows) {
  const std::string module = testing::cubin_of({{"wave", {0x22b}},
                                                {"_Z3addIfEvPd", {0x22b}},
                                                {"cupy_add__float64_float64", {0x229}},
                                                {"single", {0x223}}});
  code.add(module.data(), module.size());
  const auto name_of_kernel = [&](const char* mangled) {
    auto k = blank<KernelActivity>(kConcurrentKernel, 100, 150);
    k.name = mangled;
    add(k);
    return trace.names[trace.ops.back().name];
  };
  EXPECT_EQ(name_of_kernel("wave"), "wave [float64]");
  EXPECT_EQ(name_of_kernel("_Z3addIfEvPd"), "void add<float>(double*)");
  EXPECT_EQ(name_of_kernel("cupy_add__float64_float64"), "cupy_add__float64_float64");
  EXPECT_EQ(name_of_kernel("single"), "single");
  EXPECT_TRUE(is_double("wave [float64]"));
}

// The launch of a graph has one number for all its kernels; CUPTI that stopped to count repeats one
// as well, for kernels of no graph.
TEST_F(Conversion, KernelsOfAGraphKeepTheNumberOfItsLaunch) {
  auto k = blank<KernelActivity>(kConcurrentKernel, 100, 150);
  k.correlation = 9;
  k.graph_node = 77;
  add(k);
  add(k);
  k.graph_node = 0;
  add(k);
  add(k);
  ASSERT_EQ(trace.ops.size(), 4u);
  EXPECT_EQ(trace.ops[0].correlation, 9);
  EXPECT_EQ(trace.ops[1].correlation, 9);
  EXPECT_EQ(trace.ops[2].correlation, 9);
  EXPECT_EQ(trace.ops[3].correlation, kNoCorrelation);
}

// The text of a kernel's name may move, and another may come to lie where it was.
TEST_F(Conversion, NamesAreReadAgainWhenTheirTextChanged) {
  char text[] = "first";
  auto k = blank<KernelActivity>(kConcurrentKernel, 100, 150);
  k.name = text;
  add(k);
  std::strcpy(text, "other");
  add(k);
  k.name = nullptr;
  add(k);
  EXPECT_EQ(trace.names[trace.ops[0].name], "first");
  EXPECT_EQ(trace.names[trace.ops[1].name], "other");
  EXPECT_EQ(trace.names[trace.ops[2].name], "kernel without a name");
}

TEST_F(Conversion, OperationsWithoutTimesCountAsLost) {
  add(blank<KernelActivity>(kConcurrentKernel, 0, 0));
  add(blank<KernelActivity>(kConcurrentKernel, 100, 0));
  EXPECT_TRUE(trace.ops.empty());
  EXPECT_EQ(converter.untimed(), 2);
}

TEST_F(Conversion, CopiesKnowTheHostsMemory) {
  struct Case {
    uint8_t kind, source, destination;
    CopyKind copy;
    HostMemory memory;
  };
  for (const Case& c : {Case{1, 1, 3, CopyKind::host_to_device, HostMemory::pageable},
                        Case{1, 2, 3, CopyKind::host_to_device, HostMemory::pinned},
                        Case{2, 3, 1, CopyKind::device_to_host, HostMemory::pageable},
                        Case{8, 3, 3, CopyKind::device_to_device, HostMemory::unknown},
                        Case{10, 3, 3, CopyKind::peer, HostMemory::unknown},
                        Case{99, 0, 0, CopyKind::unknown, HostMemory::unknown}}) {
    auto copy = blank<CopyActivity>(kMemcpy, 100, 200);
    copy.copy_kind = c.kind;
    copy.source_kind = c.source;
    copy.destination_kind = c.destination;
    copy.bytes = 4096;
    add(copy);
    EXPECT_EQ(trace.ops.back().copy, c.copy);
    EXPECT_EQ(trace.ops.back().memory, c.memory);
    EXPECT_EQ(trace.ops.back().size, 4096);
  }
  auto peer = blank<PeerCopyActivity>(kMemcpyPeer, 1, 2);
  peer.copy_kind = 10;
  add(peer);
  EXPECT_EQ(trace.ops.back().correlation, 9);
}

TEST_F(Conversion, CallsThatSayNothingAreLeftOut) {
  call(kRuntime, 1, 100);
  call(kRuntime, 2, 120);
  call(kRuntime, 3, 140);
  call(kRuntime, 50, 150);
  call(kDriver, 1, 160);
  call(kDriver, 2, 180);
  ASSERT_EQ(trace.calls.size(), 4u);
  EXPECT_EQ(trace.names[trace.calls[0].name], "cudaLaunchKernel");
  EXPECT_EQ(trace.names[trace.calls[1].name], "cudaMemcpyAsync");
  EXPECT_EQ(trace.names[trace.calls[2].name], "cuLaunchKernelEx");
  EXPECT_EQ(trace.names[trace.calls[3].name], "cuMemFree_v2");
  EXPECT_EQ(trace.threads[trace.calls[0].thread], (ThreadKey{42, 77}));
}

TEST_F(Conversion, CountsCallsOfAStretch) {
  converter.count_calls(1'000, 2'000);
  for (uint64_t t = 0; t < 3'000; t += 100) call(kRuntime, 1, t + 1);
  ASSERT_EQ(converter.counts().size(), 1u);
  EXPECT_EQ(converter.counts()[0].count, 10);
  EXPECT_EQ(converter.recording_cost_ns(), 20'000);
  EXPECT_NEAR(converter.counts()[0].rate(), 1e7, 1);
  converter.count_calls(5'000, 6'000);
  EXPECT_EQ(converter.recording_cost_ns(), 0);
  EXPECT_EQ(converter.counts()[0].rate(), 0);
}

TEST_F(Conversion, ANumberThatStandsStillIsNone) {
  for (const uint32_t id : {1, 2, 3, 3, 3, 4}) {
    auto k = blank<KernelActivity>(kConcurrentKernel, 100, 150);
    k.correlation = id;
    add(k);
    auto a = blank<ApiActivity>(kRuntime, 90, 95);
    a.callback = 1;
    a.correlation = id;
    add(a);
  }
  std::vector<int64_t> ops, calls;
  for (const DeviceOp& op : trace.ops) ops.push_back(op.correlation);
  for (const HostCall& c : trace.calls) calls.push_back(c.correlation);
  const std::vector<int64_t> expected{1, 2, 3, kNoCorrelation, kNoCorrelation, 4};
  EXPECT_EQ(ops, expected);
  EXPECT_EQ(calls, expected);
  EXPECT_EQ(converter.unnumbered(), 4);
}

TEST_F(Conversion, CallsOfPausesAreCountedNotKept) {
  converter.stretch_begins(1'000);
  converter.stretch_ends(2'000);
  converter.count_calls(0, INT64_MAX);
  for (const uint64_t t : {900, 1'000, 1'999, 2'000}) call(kRuntime, 1, t);
  EXPECT_EQ(trace.calls.size(), 2u);
  EXPECT_EQ(converter.counts()[0].count, 4);
  converter.stretch_begins(3'000);
  for (const uint64_t t : {1'500, 2'500, 3'000}) call(kRuntime, 1, t);  // the first came late
  EXPECT_EQ(trace.calls.size(), 4u);
}

TEST_F(Conversion, GraphsOfPausesAreNotKept) {
  converter.nothing_recorded_yet();
  add(blank<GraphActivity>(kGraphTrace, 500, 600));
  call(kRuntime, 1, 500);
  EXPECT_EQ(trace.records(), 0u);
  converter.stretch_begins(1'000);
  converter.stretch_ends(2'000);
  for (const uint64_t t : {900, 1'000, 1'999, 2'000})
    add(blank<GraphActivity>(kGraphTrace, t, t + 100));
  EXPECT_EQ(trace.ops.size(), 2u);
}

TEST_F(Conversion, AWaitThatAStretchBeginsInIsKept) {
  converter.stretch_begins(1'000);
  converter.stretch_ends(2'000);
  converter.stretch_begins(3'000);
  call(kRuntime, 3, 2'980);  // returns before
  call(kRuntime, 1, 2'995);  // waits for nothing
  EXPECT_EQ(trace.calls.size(), 0u);
  call(kRuntime, 3, 2'995);
  ASSERT_EQ(trace.calls.size(), 1u);
  EXPECT_EQ(trace.calls[0].end_ns, 3'005);
}

TEST_F(Conversion, WaitsSayWhatFor) {
  SynchronizationActivity s{};
  s.kind = kSynchronization;
  s.type = kStreamSynchronize;
  s.stream = 13;
  s.correlation = 1;
  call(kRuntime, 4, 100);
  add(s);  // in whichever order
  s.correlation = 2;
  s.type = kEventSynchronize;
  s.stream = UINT32_MAX;
  add(s);
  call(kRuntime, 4, 200);
  s.correlation = 3;
  s.type = kContextSynchronize;
  add(s);
  call(kRuntime, 4, 300);
  converter.complete(trace);
  ASSERT_EQ(trace.calls.size(), 3u);
  EXPECT_EQ(trace.names[trace.calls[0].name], "cudaStreamSynchronize (stream 13)");
  EXPECT_EQ(trace.names[trace.calls[1].name], "cudaStreamSynchronize (an event)");
  EXPECT_EQ(trace.names[trace.calls[2].name], "cudaStreamSynchronize");
}

TEST_F(Conversion, OverheadOfThreadsOnly) {
  OverheadActivity o{};
  o.kind = kOverhead;
  o.overhead = kLazyLoading;
  o.object_kind = kObjectThread;
  o.object[0] = 42, o.object[1] = 77;
  o.start = 100, o.end = 300;
  add(o);
  o.object_kind = 3;
  add(o);
  ASSERT_EQ(trace.spans.size(), 1u);
  EXPECT_EQ(trace.spans[0].kind, SpanKind::overhead);
  EXPECT_NE(trace.names[trace.spans[0].name].find("oading"), std::string::npos);
}

TEST_F(Conversion, UnknownKindsArePassedOver) {
  add(blank<KernelActivity>(static_cast<Kind>(777), 1, 2));
  EXPECT_EQ(trace.records(), 0u);
}

TEST(PlainName, DropsVersionsNotNumbers) {
  EXPECT_EQ(plain_name("cudaLaunchKernel_v7000"), "cudaLaunchKernel");
  EXPECT_EQ(plain_name("cudaGraphLaunch_v10000"), "cudaGraphLaunch");
  EXPECT_EQ(plain_name("cudaMemcpyAsync_ptsz"), "cudaMemcpyAsync");
  EXPECT_EQ(plain_name("cuMemFree_v2"), "cuMemFree_v2");
  EXPECT_EQ(plain_name("_v"), "_v");
  EXPECT_EQ(plain_name(""), "");
}

}  // namespace
}  // namespace saturate::observe::cupti
