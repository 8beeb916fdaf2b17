// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "observe/read/decimal.h"

namespace saturate::observe {
namespace {

Trace read_text(const std::string& text) {
  return read_kineto(*memory_input(text.data(), text.size(), "test.json"));
}

TEST(Decimal, MicrosecondsAreExact) {
  const struct {
    const char* text;
    int64_t ns;
  } good[] = {{"0", 0},         {"1680000000123456.789", 1680000000123456789},
              {"12.5", 12500},  {"0.0019", 1},
              {"-3.25", -3250}, {"4e3", 4000000}};
  for (const auto& c : good) {
    int64_t ns = -1;
    EXPECT_TRUE(parse_microseconds(c.text, &ns)) << c.text;
    EXPECT_EQ(ns, c.ns) << c.text;
  }
  for (const char* text :
       {"", "-", ".", "1.2.3", "x", "NaN", "99999999999999999", "1e300", "1e", "--1"}) {
    int64_t ns = 7;
    EXPECT_FALSE(parse_microseconds(text, &ns)) << text;
    EXPECT_EQ(ns, 7) << text;
  }
}

constexpr const char* kSmall = R"JSON({
 "schemaVersion": 1,
 "deviceProperties": [{"id": 0, "name": "NVIDIA H200", "numSms": 132, "computeMajor": 9}],
 "traceEvents": [
  {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python"}},
  {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 120.5, "dur": 30,
   "args": {"device": 0, "context": 1, "stream": 7, "correlation": 5, "grid": [4, 2, 1], "block": [128, 1, 1],
            "est. achieved occupancy %": NaN}},
  {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)",
                     "pid" : 0, "tid" : 7, "ts" : 100, "dur" : 10.25, "args" : {
  "device" : 0, "stream" : 7, "correlation" : 4, "bytes" : 4096
}
},
  {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 70, "ts": 110, "dur": 6,
   "args": {"cbid": 211, "correlation": 5}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 70, "ts": 105, "dur": 16, "args": {}},
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 70, "ts": 90, "dur": 70},
  {"ph": "X", "cat": "cpu_op", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
   "pid": 7, "tid": 70, "ts": 91, "dur": 5},
  {"ph": "s", "id": 5, "pid": 7, "tid": 70, "ts": 110, "cat": "ac2g", "name": "ac2g"}
 ],
 "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8, "pg_config": [{"x": 1}]},
 "traceName": "x"
})JSON";

TEST(Kineto, ReadsWhatTheAnalysisNeeds) {
  const Trace t = read_text(kSmall);
  ASSERT_EQ(t.ops.size(), 2u);
  EXPECT_EQ(t.ops[0].kind, OpKind::copy);
  EXPECT_EQ(t.ops[0].start_ns, 100000);
  EXPECT_EQ(t.ops[0].end_ns, 110250);
  EXPECT_EQ(t.ops[0].size, 4096);
  EXPECT_EQ(t.ops[0].copy, CopyKind::host_to_device);
  EXPECT_EQ(t.ops[0].memory, HostMemory::pageable);
  EXPECT_EQ(t.ops[1].kind, OpKind::kernel);
  EXPECT_EQ(t.ops[1].start_ns, 120500);
  EXPECT_EQ(t.ops[1].size, 8);
  EXPECT_EQ(t.ops[1].block_threads, 128u);
  EXPECT_EQ(t.ops[1].correlation, 5);
  EXPECT_EQ(t.names[t.ops[1].name], "gemm");
  ASSERT_EQ(t.calls.size(), 1u);
  EXPECT_EQ(t.calls[0].correlation, 5);
  EXPECT_EQ(t.threads[t.calls[0].thread].thread, 70u);
  ASSERT_EQ(t.spans.size(), 2u);
  EXPECT_EQ(t.spans[0].kind, SpanKind::range);
  EXPECT_EQ(t.spans[1].kind, SpanKind::loader);
  EXPECT_EQ(t.devices.at(0).multiprocessors, 132);
  ASSERT_EQ(t.notes.size(), 1u);
  EXPECT_EQ(t.notes[0].substr(0, 11), "rank 3 of 8");
}

TEST(Kineto, ReadsABareArrayToo) {
  const Trace t = read_text(
      R"([{"args":{"stream":1,"device":2},"dur":1,"ts":5,"name":"k","cat":"kernel","ph":"X"}])");
  ASSERT_EQ(t.ops.size(), 1u);
  EXPECT_EQ(t.streams[t.ops[0].stream].device, 2u);
}

TEST(Kineto, OddRecordsAreCountedNotTrusted) {
  const Trace t = read_text(
      R"([{"ph":"X","cat":"kernel","name":"k","ts":5,"dur":-1,"args":{"device":0}},
          {"ph":"X","cat":"kernel","name":"k","ts":5,"dur":1,"args":{"device":99999}}])");
  EXPECT_TRUE(t.ops.empty());
  EXPECT_EQ(t.malformed, 2);
}

// Every cut of a valid file is refused with a place.
TEST(Kineto, EveryTruncationIsAnError) {
  const std::string whole = kSmall;
  for (size_t n = 0; n < whole.size() - 1; ++n) {
    try {
      read_text(whole.substr(0, n));
      FAIL() << "cut at " << n;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("at byte "), std::string::npos) << e.what();
    }
  }
}

TEST(Kineto, RefusesOtherFiles) {
  for (const char* text :
       {"{}", "7", "{\"traceEvents\": 3}", "[3]", "{\"traceEvents\":[{\"ts\":\"x\"}]}"})
    EXPECT_THROW(read_text(text), Error) << text;
}

}  // namespace
}  // namespace saturate::observe
