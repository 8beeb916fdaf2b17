// SPDX-License-Identifier: Apache-2.0
#include "observe/system/snapshot.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "observe/testing/fake_gpu.h"
#include "observe/testing/proc_tree.h"

namespace saturate::observe {
namespace {

using testing::open_fake_gpu;
using testing::ProcTree;

Snapshot second_of_two(Sampler& sampler, const std::function<void()>& between) {
  EXPECT_EQ(sampler.take().interval_s, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  between();
  return sampler.take();
}

TEST(Sampler, RatesAreOfTheInterval) {
  ProcTree tree;
  tree.process(42, {.ticks = 100, .run_ns = 0, .voluntary = 10});
  tree.process(50, {.name = "loader", .parent = 42, .ticks = 10});
  tree.process(51, {.name = "stranger", .parent = 1});
  std::string why;
  Sampler sampler(open_fake_gpu(R"({"gpus": [{"utilization": 30,
      "processes": [{"pid": 42, "memory": 64}]}]})",
                                why),
                  "", ProcessReader(tree.proc(), tree.cgroups()), {});
  const Snapshot s = second_of_two(sampler, [&] {
    tree.process(42, {.ticks = 120, .run_ns = 100'000'000, .voluntary = 30});
    tree.process(50, {.name = "loader", .parent = 42, .ticks = 20});
    tree.write("proc/stat", "cpu  150 0 100 700 150 0 0 0 0 0\ncpu0 1\n");
  });
  ASSERT_EQ(s.processes.size(), 2u);
  const ProcessView& p = s.processes[0];
  EXPECT_EQ(p.pid, 42);
  EXPECT_TRUE(p.seen);
  EXPECT_EQ(p.container_pid, 7);
  ASSERT_TRUE(p.cpu && p.voluntary && p.thread_rates[0].running);
  // The tree changed by 0.2 s of CPU time, 0.1 s on a core and 20 switches, in the same time for
  // all.
  EXPECT_NEAR(*p.cpu * s.interval_s, 0.2, 0.1) << "a busy machine reads late";
  EXPECT_NEAR(*p.thread_rates[0].running / *p.cpu, 0.5, 1e-6);
  EXPECT_NEAR(*p.voluntary / *p.cpu, 100, 1e-3);
  EXPECT_EQ(p.involuntary, 0);
  EXPECT_EQ(p.workers, 1);
  EXPECT_NEAR(*p.workers_cpu * s.interval_s, 0.1, 0.05);
  EXPECT_TRUE(s.processes[1].worker);
  EXPECT_EQ(s.processes[1].name, "loader");
  EXPECT_DOUBLE_EQ(s.host_cpu.value(), 0.5);
  EXPECT_DOUBLE_EQ(s.host_io_wait.value(), 0.5);
}

TEST(Sampler, ReusedPidHasNoPast) {
  ProcTree tree;
  tree.process(42, {.ticks = 100, .start = 5});
  Sampler sampler(nullptr, "none", ProcessReader(tree.proc(), tree.cgroups()),
                  {.gpus = {}, .also = {42}});
  const Snapshot s = second_of_two(sampler, [&] { tree.process(42, {.ticks = 900, .start = 77}); });
  EXPECT_EQ(s.no_gpu, "none");
  EXPECT_FALSE(s.processes.at(0).cpu);
  EXPECT_EQ(s.processes[0].verdict.word, "unknown");
}

TEST(Sampler, ProcessThatVanishesStaysUnseen) {
  ProcTree tree;
  tree.process(42, {});
  std::string why;
  Sampler sampler(
      open_fake_gpu(R"({"gpus": [{"utilization": 30, "processes": [{"pid": 42}]}]})", why), "",
      ProcessReader(tree.proc(), tree.cgroups()), {});
  const Snapshot s =
      second_of_two(sampler, [&] { std::filesystem::remove_all(tree.root / "proc/42"); });
  ASSERT_EQ(s.processes.size(), 1u);
  EXPECT_FALSE(s.processes[0].seen);
  EXPECT_EQ(s.processes[0].verdict.word, "unknown");
}

// In a container the driver may name pids of the host.
TEST(Sampler, HostPidInAContainerIsMappedOnlyWhenUnambiguous) {
  ProcTree tree;
  std::filesystem::create_directories(tree.root / "proc/self/ns");
  std::filesystem::create_symlink("pid:[4026532999]", tree.root / "proc/self/ns/pid");
  tree.write("proc/self/stat", "9 (saturate) R 1");
  tree.process(30, {.name = "shell"});
  tree.write("proc/30/maps", "7f00-7f01 r-xp 0 00:00 1 /usr/lib/libc.so.6\n");
  std::filesystem::create_directories(tree.root / "proc/30/fd");
  tree.process(31, {.name = "train"});
  std::string why;
  const char* script = R"({"gpus": [{"utilization": 30, "processes": [{"pid": 30}]}]})";
  Sampler one(open_fake_gpu(script, why), "", ProcessReader(tree.proc()), {.gpus = {}});
  Snapshot s = one.take();
  ASSERT_EQ(s.processes.size(), 1u);
  EXPECT_EQ(s.processes[0].pid, 31) << "pid 30 here is another program";
  EXPECT_TRUE(s.processes[0].guessed);

  tree.process(32, {.name = "train2"});
  Sampler two(open_fake_gpu(script, why), "", ProcessReader(tree.proc()), {.gpus = {}});
  s = two.take();
  ASSERT_EQ(s.processes.size(), 1u);
  EXPECT_FALSE(s.processes[0].seen) << "two fit: neither is named";
  EXPECT_EQ(s.processes[0].pid, -30);
}

Snapshot one_gpu(int utilisation, std::optional<double> sm = {}, uint64_t reasons = 0) {
  Snapshot s;
  GpuView g;
  g.reading.utilisation = utilisation;
  g.reading.activity.sm = sm;
  g.reading.clock_reasons = reasons;
  s.gpus.push_back(g);
  return s;
}

ProcessView process(double running, double ready = 0) {
  ProcessView p;
  p.pid = 5;
  p.seen = true;
  p.gpus.push_back({});
  p.cpu = running;
  ThreadRates t;
  t.id = 5;
  t.running = running;
  t.ready = ready;
  p.thread_rates.push_back(t);
  return p;
}

std::string word(ProcessView p, Snapshot s) {
  s.processes.push_back(p);
  return judge(p, s).word;
}

TEST(Verdict, WordForEachCase) {
  EXPECT_EQ(word(process(1), one_gpu(99)), "busy");
  EXPECT_EQ(word(process(1), one_gpu(99, 80)), "busy");
  EXPECT_EQ(word(process(1), one_gpu(99, 10)), "narrow?");
  EXPECT_EQ(word(process(1), one_gpu(99, 80, kReasonPowerCap)), "busy") << "the cap is no fault";
  EXPECT_EQ(word(process(1), one_gpu(99, 80, kReasonThermal)), "throttled");
  EXPECT_EQ(word(process(0.01), one_gpu(0, 0, kReasonThermal)), "idle");
  EXPECT_EQ(word(process(0.97), one_gpu(45)), "launch-bound?");
  EXPECT_EQ(word(process(0.5, 0.3), one_gpu(45)), "cpu-starved");
  EXPECT_EQ(word(process(0.2), one_gpu(45)), "waiting");
  EXPECT_EQ(word(process(0.01), one_gpu(0)), "idle");
  EXPECT_EQ(word(process(0.6), one_gpu(60)), "unknown");
  ProcessView p = process(0.2);
  p.workers = 4;
  p.workers_cpu = 3.9;
  EXPECT_EQ(word(p, one_gpu(45)), "starved?");
  p.throttled = 0.5;
  EXPECT_EQ(word(p, one_gpu(45)), "cpu-starved");
  p = process(0.2);
  p.seen = false;
  EXPECT_EQ(word(p, one_gpu(45)), "unknown");
  Snapshot lost = one_gpu(45);
  lost.gpus[0].reading = {};
  lost.gpus[0].reading.lost = "fell off";
  EXPECT_EQ(word(process(1), lost), "lost");
}

TEST(Verdict, AbstainsWhenAGpuIsSharedAndNothingTellsWho) {
  Snapshot s = one_gpu(99);
  ProcessView a = process(1), b = process(1);
  b.pid = 6;
  s.processes = {a, b};
  EXPECT_EQ(judge(a, s).word, "unknown");
  a.gpus[0].utilisation = 97;
  EXPECT_EQ(judge(a, s).word, "busy");
}

}  // namespace
}  // namespace saturate::observe
