// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <cstring>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "observe/read/merge.h"
#include "observe/read/sat_format.h"
#include "observe/read/sat_reader.h"
#include "observe/read/sat_writer.h"
#include "observe/read/seams.h"
#include "observe/report/diagnosis.h"
#include "observe/report/json.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using saturate::testing::read_file;
using saturate::testing::TempFolder;

Trace program() {
  testing::Simulator s;
  for (int i = 0; i < 40; ++i) {
    s.begin_step(i);
    s.wait(SpanKind::loader, "enumerate(DataLoader)", 500'000);
    s.copy_in(1 << 20, 50'000, true);
    for (int k = 0; k < 10; ++k) s.kernel(k == 0 ? "first" : "sm90_gemm_bf16bf16", 60'000);
  }
  Trace t = s.take();
  t.framework = "PyTorch";
  t.notes = {"a note"};
  t.copy_rates = {"H200", "0000:17:00.0", 55.5, 54, 9, 8};
  for (int i = 0; i < 30; ++i)
    t.memory.push_back({t.calls[0].start_ns + i * 500'000, i << 20, i << 21, 0});
  return t;
}

// In `parts` flushes, each with what has ended by then.
std::string write(const TempFolder& folder, const Trace& whole, int64_t parts) {
  const std::string path = folder / "t.sat";
  SatWriter writer(path);
  Trace part = whole;
  const int64_t from = whole.calls.front().start_ns, to = whole.ops.back().end_ns + 1;
  for (int64_t i = 1; i <= parts; ++i) {
    const int64_t low = i == 1 ? INT64_MIN : from + (to - from) * (i - 1) / parts,
                  high = i == parts ? INT64_MAX : from + (to - from) * i / parts;
    const auto pick = [&](const auto& in, auto& out) {
      out.clear();
      for (const auto& r : in) {
        if (r.end_ns > low && r.end_ns <= high) out.push_back(r);
      }
    };
    pick(whole.ops, part.ops);
    pick(whole.calls, part.calls);
    pick(whole.spans, part.spans);
    part.memory.clear();
    for (const MemorySample& m : whole.memory) {
      if (m.time_ns > low && m.time_ns <= high) part.memory.push_back(m);
    }
    writer.write(part, high);
  }
  writer.close(part);
  return path;
}

TEST(Sat, RoundTrip) {
  const TempFolder folder;
  const Trace whole = program();
  const std::string path = write(folder, whole, 1);
  const auto capture = open_capture(path);
  while (capture->read_window()) {
  }
  const Trace& t = capture->trace();
  ASSERT_EQ(t.ops.size(), whole.ops.size());
  for (size_t i = 0; i < t.ops.size(); ++i) {
    EXPECT_EQ(t.ops[i].start_ns, whole.ops[i].start_ns);
    EXPECT_EQ(t.ops[i].end_ns, whole.ops[i].end_ns);
    EXPECT_EQ(t.ops[i].correlation, whole.ops[i].correlation);
    EXPECT_EQ(t.ops[i].memory, whole.ops[i].memory);
    EXPECT_EQ(t.names[t.ops[i].name], whole.names[whole.ops[i].name]);
  }
  EXPECT_EQ(t.calls.size(), whole.calls.size());
  EXPECT_EQ(t.spans.size(), whole.spans.size());
  EXPECT_EQ(t.memory, whole.memory);
  EXPECT_TRUE(t.memory_by_calls);
  EXPECT_EQ(t.framework, "PyTorch");
  EXPECT_EQ(t.notes, std::vector<std::string>{"a note"});
  EXPECT_EQ(t.devices.at(0).multiprocessors, 132);
  EXPECT_EQ(t.copy_rates, whole.copy_rates);
}

// In two parts, of which the second has stacks that go on from those of the first.
TEST(Sat, StacksAndTheirSamples) {
  const TempFolder folder;
  const std::string path = folder / "t.sat";
  Trace t;
  const auto node = [&](uint32_t caller, const char* function, uint32_t line) {
    return t.stacks.add({caller, t.names.add(function), t.names.add("a.py"), line,
                         t.names.add(function + std::string("()"))});
  };
  const uint32_t main = node(kNoStack, "main", 3), other = t.threads.add({7, 8});
  SatWriter writer(path);
  t.samples = {{100, 400, 4, t.threads.add({7, 7}), main, t.names.add("read"), other, kNoStack,
                HostState::blocked}};
  t.parents[9] = 7;
  writer.write(t, 500);
  const uint32_t hot = node(main, "hot", 5);
  t.samples = {{600, 600, 1, t.threads.add({7, 7}), hot, 0, other, main, HostState::lock}};
  writer.write(t, 700);
  writer.close(t);
  const auto capture = read_sat(open_input(path), kSatWindowRecords, SatPauses::kept);
  while (capture->read_window()) {
  }
  Trace read;
  read.threads.add({1, 1});  // numbers differ from the file's
  read.names.add("x");
  append_trace(read, capture->trace(), 100);
  ASSERT_EQ(read.samples.size(), 2u);
  const HostSample &first = read.samples[0], &second = read.samples[1];
  EXPECT_EQ(first.start_ns, 100);
  EXPECT_EQ(first.end_ns, 400);
  EXPECT_EQ(first.count, 4u);
  EXPECT_EQ(read.names[first.wait], "read");
  EXPECT_EQ(first.state, HostState::blocked);
  EXPECT_EQ(first.holder_stack, kNoStack);
  EXPECT_EQ(read.threads[second.thread], (ThreadKey{107, 7}));
  EXPECT_EQ(read.threads[second.holder], (ThreadKey{107, 8}));
  EXPECT_EQ(second.state, HostState::lock);
  EXPECT_EQ(second.holder_stack, first.stack);
  const StackNode& inner = read.stacks[second.stack];
  EXPECT_EQ(inner.caller, first.stack);
  EXPECT_EQ(inner.line, 5u);
  EXPECT_EQ(read.names[inner.function], "hot");
  EXPECT_EQ(read.names[inner.file], "a.py");
  EXPECT_EQ(read.names[inner.text], "hot()");
  EXPECT_EQ(read.parents, (std::map<uint32_t, uint32_t>{{109, 107}}));
}

// Times in which nothing else was recorded hold no samples either.
TEST(Sat, SamplesOfPausesAreLeftOut) {
  Trace t;
  const uint32_t main = t.stacks.add({});
  t.threads.add({7, 7});
  for (int64_t ms = 0; ms < 10; ++ms)
    t.calls.push_back({ms * 1'000'000, ms * 1'000'000 + 10, kNoCorrelation, 0, 0});
  const auto sample = [&](int64_t from_ms, int64_t to_ms, uint32_t count) {
    t.samples.push_back({from_ms * 1'000'000, to_ms * 1'000'000, count, 0, main});
  };
  sample(1, 1, 1);
  sample(2, 8, 7);
  sample(5, 5, 1);
  sample(9, 9, 1);
  t.pauses = {{3'500'000, 6'500'000}};
  cut_pauses(t);
  t.sort();
  ASSERT_EQ(t.samples.size(), 3u);
  EXPECT_EQ(t.samples[1].count, 4u);  // 3 ms of 6
  EXPECT_EQ(t.samples[1].end_ns - t.samples[1].start_ns, 3'000'000);
  EXPECT_EQ(t.samples[2].start_ns - t.samples[0].start_ns, 5'000'000);
}

TEST(Sat, WindowsGiveTheSameReport) {
  const TempFolder folder;
  const Trace whole = program();
  const Diagnosis expected = diagnose(*make_capture(whole), "x");
  for (const int64_t parts : {1, 3, 11}) {
    const auto capture = read_sat(open_input(write(folder, whole, parts)), 60);
    const Diagnosis got = diagnose(*capture, "x");
    EXPECT_EQ(got.device().budget, expected.device().budget) << parts;
    EXPECT_EQ(got.analysis.steps.count, expected.analysis.steps.count);
    EXPECT_EQ(got.analysis.steps.median_ns, expected.analysis.steps.median_ns);
    EXPECT_EQ(got.verdict.id, expected.verdict.id);
    EXPECT_EQ(got.analysis.copy_rates, whole.copy_rates);
    EXPECT_EQ(got.analysis.records, static_cast<int64_t>(whole.records()));
  }
}

TEST(Sat, ACutFileIsReadUpToTheCut) {
  const TempFolder folder;
  const std::string bytes = read_file(write(folder, program(), 8));
  for (const size_t keep : {bytes.size() - 1, bytes.size() * 3 / 4, bytes.size() / 2}) {
    const auto capture = read_sat(memory_input(bytes.data(), keep, "cut.sat"));
    while (capture->read_window()) {
    }
    ASSERT_EQ(capture->trace().notes.size(), 2u);
    EXPECT_NE(capture->trace().notes[1].find("cut off at byte"), std::string::npos);
  }
}

// As after a power failure: the length is there, the bytes are not.
TEST(Sat, ALastBlockThatDoesNotSumIsLeftOut) {
  const TempFolder folder;
  std::string bytes = read_file(write(folder, program(), 8));
  bytes.resize(bytes.size() - 24);  // the end
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  const auto capture = read_sat(memory_input(bytes.data(), bytes.size(), "cut.sat"));
  while (capture->read_window()) {
  }
  ASSERT_EQ(capture->trace().notes.size(), 2u);
  EXPECT_NE(capture->trace().notes[1].find("cut off at byte"), std::string::npos);
}

TEST(Sat, ACutFileSaysWhatWasIssued) {
  const TempFolder folder;
  Trace t = program();
  const size_t launches = t.calls.size();
  std::erase_if(
      t.ops, [&](const DeviceOp& op) { return op.start_ns > t.ops.front().start_ns + 2'000'000; });
  ASSERT_LT(t.ops.size(), launches);
  std::string bytes = read_file(write(folder, t, 1));
  const auto capture = read_sat(memory_input(bytes.data(), bytes.size() - 1, "cut.sat"));
  while (capture->read_window()) {
  }
  const std::string note = capture->trace().notes.back();
  EXPECT_NE(note.find("have no record of their work"), std::string::npos) << note;
}

TEST(Sat, AFullDiskLeavesAWholeCapture) {
  const TempFolder folder;
  const std::string path = folder.path() + "/1.sat";
  const Trace t = program();
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit few = before;
  few.rlim_cur = 100'000;
  SatWriter writer(path);
  int64_t written = 0;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  try {
    for (;; ++written) writer.write(t, 0);
  } catch (const Error&) {
    writer.abandon("the disk is full");
  }
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_GT(written, 0);
  const auto capture = open_capture(path);
  while (capture->read_window()) {
  }
  EXPECT_EQ(capture->trace().ops.size(), static_cast<size_t>(written) * t.ops.size());
  EXPECT_EQ(capture->trace().notes, (std::vector<std::string>{"a note", "the disk is full"}));
}

TEST(Sat, AnotherVersionIsToldFromNoCapture) {
  const auto refusal = [](std::string_view bytes) {
    try {
      read_sat(memory_input(bytes.data(), bytes.size(), "x.sat"));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal("SATCAP99....").find("the version of saturate that recorded it"),
            std::string::npos);
  EXPECT_NE(refusal("not a capture").find("no capture of saturate"), std::string::npos);
  EXPECT_NE(refusal("SAT").find("no capture of saturate"), std::string::npos);
}

TEST(Sat, CapturesOfTheFormatBeforeAreRead) {
  const TempFolder folder;
  std::string bytes = read_file(write(folder, program(), 1));
  bytes[7] = '1';
  for (size_t at = 8; at < bytes.size();) {
    sat::Header header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    header.checksum = sat::checksum(0, bytes.data() + at + sizeof header, header.bytes);
    std::memcpy(bytes.data() + at, &header, sizeof header);
    at += sizeof header + header.bytes;
  }
  const auto capture = read_sat(memory_input(bytes.data(), bytes.size(), "old.sat"));
  while (capture->read_window()) {
  }
  EXPECT_EQ(capture->trace().ops.size(), program().ops.size());
}

// Also in the head of a block: no kind is taken for another or passed over.
TEST(Sat, EveryFlippedBitIsFound) {
  const TempFolder folder;
  Trace t = program();
  t.ops.resize(3);
  t.calls.resize(3);
  t.spans.resize(1);
  const std::string good = read_file(write(folder, t, 1));
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int bit : {0x01, 0x10}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ bit);
      bool found = false;
      try {
        const auto capture = read_sat(memory_input(bad.data(), bad.size(), "bad.sat"));
        while (capture->read_window()) {
        }
        for (const std::string& note : capture->trace().notes)
          found = found || note.find("cut off at byte") != std::string::npos;
      } catch (const Error& e) {
        const std::string what = e.what();
        found = what.find("at byte") != what.npos || what.find("of format SATCAP") != what.npos;
      }
      EXPECT_TRUE(found) << "byte " << i;
    }
  }
}

}  // namespace
}  // namespace saturate::observe
