// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto.h"

#include <fmt/format.h>
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

TEST(Kineto, ReadsTheAllocatorsInstants) {
  const auto instant = [](int device_type, int device, int ts) {
    return fmt::format(
        R"({{"ph":"i","cat":"cpu_instant_event","s":"t","name":"[memory]","pid":1,"tid":1,"ts":{},)"
        R"("args":{{"Total Reserved":300,"Total Allocated":{},"Bytes":-8,"Addr":140103,)"
        R"("Device Id":{},"Device Type":{},"Ev Idx":4}}}})",
        ts, 10 * ts, device, device_type);
  };
  const Trace t = read_text("[" + instant(1, 0, 7) + "," + instant(0, -1, 6) + "," +
                            instant(1, 3, 5) + "," + instant(1, 5000, 5) + "]");
  ASSERT_EQ(t.memory.size(), 2u) << "the host's are not the GPU's";
  EXPECT_EQ(t.memory[0], (MemorySample{5000, 50, 300, 3}));
  EXPECT_EQ(t.memory[1], (MemorySample{7000, 70, 300, 0}));
  EXPECT_EQ(t.malformed, 1);
}

TEST(Kineto, ReadsWhatOperatorsHaveToDo) {
  const char* text = R"([
    {"ph":"X","cat":"cpu_op","name":"aten::linear","ts":1,"dur":20,"tid":7,"args":{"External id":1,
     "Concrete Inputs":["","",""],"Input type":["float","float","float"],"Input Dims":[[8,16],[4,16],[4]]}},
    {"ph":"X","cat":"cpu_op","name":"aten::addmm","ts":2,"dur":9,"tid":7,"args":{"External id":2,
     "Concrete Inputs":["","","","1","1"],"Input type":["float","float","float","Scalar","Scalar"],
     "Input Strides":[[1],[16,1],[1,16],[],[]],"Input Dims":[[4],[8,16],[16,4],[],[]]}},
    {"ph":"X","cat":"kernel","name":"sgemm","ts":30,"dur":9,"args":{"External id":2,"device":0,"correlation":5}}])";
  const Trace t = read_text(text);
  EXPECT_TRUE(t.shapes);
  ASSERT_EQ(t.work.size(), 2u);
  EXPECT_EQ(t.work[1].operation, 2);
  EXPECT_EQ(t.work[1].flops, 2 * 8 * 16 * 4);
  EXPECT_EQ(t.ops[0].operation, 2);
  EXPECT_FALSE(read_text(kSmall).shapes);
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

// Everything that two readings of the same bytes can differ in: the trace, or the error.
std::string reading(const std::string& text, KinetoOptions options) {
  try {
    const Trace t = read_kineto(*memory_input(text.data(), text.size(), "test.json"), options);
    std::string out = std::to_string(t.malformed) + "\n";
    for (const DeviceOp& o : t.ops)
      out += fmt::format("{} {} {} {} {} {} {} {} {}\n", o.start_ns, o.end_ns, o.correlation,
                         o.size, t.names[o.name], t.streams[o.stream].stream, o.block_threads,
                         static_cast<int>(o.kind), static_cast<int>(o.memory));
    for (const HostCall& c : t.calls)
      out += fmt::format("{} {} {} {} {}\n", c.start_ns, c.end_ns, c.correlation, t.names[c.name],
                         t.threads[c.thread].thread);
    for (const HostSpan& s : t.spans)
      out += fmt::format("{} {} {} {} {}\n", s.start_ns, s.end_ns, t.names[s.name],
                         t.threads[s.thread].thread, static_cast<int>(s.kind));
    return out;
  } catch (const Error& e) {
    return e.what();
  }
}

// Objects within events that look like events, braces in texts, escapes, odd numbers, long blanks.
std::string awkward() {
  std::string text = "{\"traceEvents\": [";
  for (int i = 0; i < 60; ++i)
    text += fmt::format(
        R"({}{{"ph":"X","cat":"{}","name":"a{}}},  {{\"\u00e9","ts":{}.{}e0,"dur":1.5,"pid":"p","tid":"t{}",)"
        R"("args":{{"pg":[{{"a":1}},{{"b":[-0.5e-3,true,null,NaN,-Infinity]}},{{"c":"}},{{\"x\":\\"}}],)"
        R"("correlation":{},"device":{},"stream":"{}","grid":[{},2],"bytes":1e3}}}})",
        i == 0       ? " "
        : i % 7 == 0 ? " ,\n\t "
                     : ",",
        i % 3 == 0 ? "kernel" : "cuda_runtime", i, 50 - i, i, i % 4, i, i % 2, i % 5, i);
  return text + "], \"deviceProperties\": [{\"id\": 0, \"numSms\": 7}], \"x\": {}}";
}

TEST(Kineto, ChunksAndThreadsChangeNothing) {
  for (const std::string& text : {std::string(kSmall), awkward()}) {
    const std::string careful = reading(text, {.threads = 1, .careful = true});
    EXPECT_EQ(careful.find("test.json"), std::string::npos) << careful;
    for (const int threads : {1, 2, 5})
      for (const size_t bytes : {1, 2, 3, 7, 64, 333, 5000, 1 << 20})
        EXPECT_EQ(reading(text, {.threads = threads, .chunk_bytes = bytes}), careful)
            << threads << " threads, chunks of " << bytes;
  }
}

// One byte broken at a time: both readers of events say the same, in chunks or not.
TEST(Kineto, QuickAndCarefulAgreeOnCorruptFiles) {
  const std::string whole = awkward().substr(0, 700) + "]}";
  const std::string small = kSmall;
  for (const std::string* good : {&whole, &small}) {
    for (size_t at = 0; at < good->size(); ++at) {
      for (const char c : {'"', '\\', '{', ']', ',', '0', 'x', '\0'}) {
        std::string bad = *good;
        bad[at] = c;
        const std::string careful = reading(bad, {.threads = 1, .careful = true});
        ASSERT_EQ(reading(bad, {.threads = 1}), careful) << at << " " << c;
        if (at % 5 != 0) continue;
        ASSERT_EQ(reading(bad, {.threads = 2, .chunk_bytes = 40}), careful) << at << " " << c;
      }
    }
  }
}

// Events laid out like those before, of which only the values are read, and the last ones broken.
TEST(Kineto, QuickAndCarefulAgreeOnLayoutsThatRepeat) {
  std::string good = "[\n";
  size_t last = 0;
  for (int i = 0; i < 4; ++i) {
    last = good.size();
    const std::string n = std::to_string(i + 7);
    good += R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7,
  "ts": 100.00)" +
            n.substr(0, 1) + R"(, "dur": 2.5, "args": {"stream": 7, "correlation": )" + n +
            R"(, "x": {"y": [1, "z"]}, "grid": [2, 3, )" + n + R"(], "bytes": "12"}},
{"ph": "s", "id": )" +
            n + R"(, "pid": 4, "tid": 4, "ts": 12345678.125, "cat": "ac2g", "name": "a"},
{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4, "tid": "4",
  "ts": 1680000000123456.789, "dur": 4, "args": {"correlation": )" +
            n + R"(}},
)";
    if (i % 2 == 1)
      good += R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2, "tid": 4,
  "args": {"External id": )" +
              n + R"(, "Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"]}},
)";
  }
  good += R"({"ph": "M"}])";
  ASSERT_EQ(reading(good, {.threads = 1}), reading(good, {.threads = 1, .careful = true}));
  for (size_t at = last; at < good.size(); ++at) {
    for (const char c : {'"', '\\', '{', ']', ',', '0', 'x', '-', ' '}) {
      std::string bad = good;
      bad[at] = c;
      ASSERT_EQ(reading(bad, {.threads = 1}), reading(bad, {.threads = 1, .careful = true}))
          << at << " " << c;
    }
    std::string shorter = good;
    shorter.erase(at, 1);
    ASSERT_EQ(reading(shorter, {.threads = 1}), reading(shorter, {.threads = 1, .careful = true}))
        << at;
  }
}

TEST(Kineto, QuickAndCarefulAgreeOnTimes) {
  for (const char* fraction : {"", ".1", ".123", ".1234", ".", ".12a", "e2", ".123e1"}) {
    std::string digits;
    for (const char digit : std::string_view("1680000001234567890123")) {
      digits += digit;
      for (const std::string& time :
           {digits, "0" + digits, "-" + digits, digits + "/", digits + ":"}) {
        const std::string text = R"([{"ph":"X","cat":"overhead","name":"o","tid":1,"dur":1,"ts":)" +
                                 time + fraction + R"(,"pid":1}])";
        ASSERT_EQ(reading(text, {.threads = 1}), reading(text, {.threads = 1, .careful = true}))
            << text;
      }
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
