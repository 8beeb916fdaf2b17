// SPDX-License-Identifier: Apache-2.0
// On a procfs of files: what the kernel would say is written before each sample.
#include "observe/launcher/thread_sampler.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"

namespace saturate::observe {
namespace {

using saturate::testing::TempFolder;

class Sampling : public ::testing::Test {
 protected:
  void write(int pid, int thread, int64_t run_ns, int64_t wait_ns, char state, int parent = 1,
             const std::string& name = "python3") {
    namespace fs = std::filesystem;
    const std::string process = folder / std::to_string(pid),
                      task = process + "/task/" + std::to_string(thread);
    fs::create_directories(task);
    fs::create_directories(process + "/fd");
    std::ofstream(process + "/io") << "rchar: 0\nwchar: 0\nread_bytes: 0\n";
    const std::string stat = std::to_string(thread) + " (" + name + ") " + state + " " +
                             std::to_string(parent) + " 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";
    std::ofstream(process + "/stat") << stat;
    std::ofstream(task + "/stat") << stat;
    std::ofstream(task + "/schedstat") << run_ns << " " << wait_ns << " 5\n";
    std::ofstream(task + "/status")
        << "Name:\tx\nvoluntary_ctxt_switches:\t" << switches
        << "\nnonvoluntary_ctxt_switches:\t3\nCpus_allowed_list:\t" << cores << "\n";
  }
  Trace spans(ThreadSampler& sampler) {
    Trace t;
    sampler.take_spans(t);
    t.sort();
    return t;
  }

  TempFolder folder;
  int switches = 10;
  std::string cores = "0-3";
  int64_t now_ns = 0;
  static constexpr int64_t kMs = 1'000'000, kStep = 10 * kMs;
};

// Runs 4 ms into an interval, sleeps through the next, wakes 7 ms into the third.
TEST_F(Sampling, AWaitIsPlacedByWhatWasRun) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  write(100, 100, 0, 0, 'R');
  now_ns = 1'000 * kMs;
  sampler.sample();
  write(100, 100, 4 * kMs, 0, 'S');
  now_ns = 1'010 * kMs;
  sampler.sample();
  write(100, 100, 4 * kMs, 0, 'S');
  now_ns = 1'020 * kMs;
  sampler.sample();
  write(100, 100, 7 * kMs, 0, 'R');
  now_ns = 1'030 * kMs;
  sampler.sample();
  for (int i = 1; i <= 2; ++i) {
    write(100, 100, (7 + 10 * i) * kMs, 0, 'R');
    now_ns = (1'030 + 10 * i) * kMs;
    sampler.sample();
  }
  const Trace t = spans(sampler);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.spans[0].kind, SpanKind::blocked);
  EXPECT_EQ(t.spans[0].start_ns, 1'004 * kMs);
  EXPECT_EQ(t.spans[0].end_ns, 1'027 * kMs);
  EXPECT_EQ(t.threads[t.spans[0].thread], (ThreadKey{100, 100}));
}

TEST_F(Sampling, TimeWithoutACoreIsNoSleep) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  write(100, 100, 0, 0, 'R');
  now_ns = 1'000 * kMs;
  sampler.sample();
  write(100, 100, 4 * kMs, 6 * kMs, 'R');
  now_ns = 1'010 * kMs;
  sampler.sample();
  const Trace t = spans(sampler);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.spans[0].kind, SpanKind::runnable);
  EXPECT_EQ(t.spans[0].end_ns - t.spans[0].start_ns, 6 * kMs);
}

TEST_F(Sampling, ABusyThreadHasNoSpans) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  for (int i = 0; i < 10; ++i) {
    write(100, 100, i / 3 * 3 * kStep - i * 10'000, 0, 'R');  // booked now and then
    now_ns = 1'000 * kMs + i * kStep;
    sampler.sample();
  }
  EXPECT_TRUE(spans(sampler).spans.empty());
}

TEST_F(Sampling, CountsHigherThanTheClockAreCut) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  write(100, 100, 0, 0, 'R');
  now_ns = 1'000 * kMs;
  sampler.sample();
  write(100, 100, 50 * kMs, 80 * kMs, 'S');
  now_ns = 1'010 * kMs;
  sampler.sample();
  write(100, 100, 0, 0, 'S');  // and falling ones
  now_ns = 1'020 * kMs;
  sampler.sample();
  for (const HostSpan& s : spans(sampler).spans) {
    EXPECT_GE(s.start_ns, 1'000 * kMs);
    EXPECT_LE(s.end_ns, 1'020 * kMs);
  }
}

TEST_F(Sampling, ChildrenOfChildrenButNoStrangers) {
  write(100, 100, 0, 0, 'R');
  write(200, 200, 0, 0, 'R', 100, "a) S 1 (b");
  write(201, 201, 0, 0, 'R', 200);
  write(300, 300, 0, 0, 'R', 1);
  const ProcessReader reader(folder / "");
  EXPECT_EQ(reader.tree(100), (std::vector<int64_t>{100, 200, 201}));
  EXPECT_EQ(reader.tree(999), std::vector<int64_t>{999});
  write(100, 100, 0, 0, 'R', 201);  // a circle
  EXPECT_EQ(reader.tree(200), (std::vector<int64_t>{200, 201, 100}));
  ThreadCounts counts;
  ThreadFiles files;
  ASSERT_TRUE(read_thread(200, 200, true, counts, folder / "", files));
  EXPECT_EQ(counts.name, "a) S 1 (b");
  EXPECT_EQ(counts.state, 'R');
  EXPECT_EQ(counts.voluntary, 10);
  EXPECT_EQ(counts.involuntary, 3);
  EXPECT_FALSE(read_thread(200, 999, true, counts, folder / "", files));
}

TEST_F(Sampling, SummaryNamesTheBusiest) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  write(100, 100, 0, 0, 'R');
  now_ns = 1'000 * kMs;
  sampler.sample();
  for (int i = 1; i <= 40; ++i) {
    switches = 10 + 5 * i;
    write(100, 100, i * kStep / 2, 0, i < 40 ? 'R' : 'S');
    now_ns = 1'000 * kMs + i * kStep;
    sampler.sample();
  }
  const std::vector<std::string> lines = sampler.summary();
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_NE(lines[0].find("1 thread on 0.50 cores"), std::string::npos) << lines[0];
  EXPECT_NE(lines[0].find("500 voluntary"), std::string::npos) << lines[0];
  EXPECT_NE(lines[1].find("python3 (100) 50%"), std::string::npos) << lines[1];
}

TEST_F(Sampling, SummaryNamesThreadsOnFewCores) {
  std::ofstream(folder / "stat") << "cpu  9 9\ncpu0 1\ncpu1 1\ncpu2 1\ncpu3 1\nintr 5\n";
  const auto summary = [&](const char* of_the_second) {
    ThreadSampler sampler(
        100, [this] { return now_ns; }, folder / "");
    for (int i = 0; i <= 40; ++i) {
      cores = "0-3";
      write(100, 100, i * kStep / 4, 0, i < 40 ? 'R' : 'S');
      cores = of_the_second;
      write(100, 101, i * kStep / 2, 0, i < 40 ? 'R' : 'S');
      now_ns += kStep;
      sampler.sample();
    }
    std::string all;
    for (const std::string& line : sampler.summary()) all += line + "\n";
    return all;
  };
  const std::string bound = summary("1,3");
  EXPECT_NE(bound.find("1 of 2 threads may run on 2 of the machine's 4 cores"), std::string::npos)
      << bound;
  EXPECT_NE(bound.find("and used 0.50"), std::string::npos) << bound;
  EXPECT_EQ(summary("0-3").find("may run"), std::string::npos);
}

TEST_F(Sampling, AThreadThatEndsIsNoError) {
  ThreadSampler sampler(
      100, [this] { return now_ns; }, folder / "");
  write(100, 100, 0, 0, 'R');
  now_ns = 1'000 * kMs;
  sampler.sample();
  write(100, 100, 0, 0, 'S');
  now_ns = 1'010 * kMs;
  sampler.sample();
  std::ofstream(folder / "100/task/100/schedstat");  // as files of threads are that have ended
  std::filesystem::remove_all(folder / "100");
  now_ns = 1'020 * kMs;
  sampler.sample();
  now_ns = 1'030 * kMs;
  sampler.sample();
  const Trace t = spans(sampler);
  ASSERT_EQ(t.spans.size(), 1u);
  EXPECT_EQ(t.spans[0].end_ns, 1'020 * kMs);
}

}  // namespace
}  // namespace saturate::observe
