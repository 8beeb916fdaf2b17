// SPDX-License-Identifier: Apache-2.0
#include "observe/system/processes.h"

#include <gtest/gtest.h>

#include "observe/testing/proc_tree.h"

namespace saturate::observe {
namespace {

using testing::ProcTree;

TEST(ProcessReader, ReadsAProcess) {
  ProcTree tree;
  tree.process(42,
               {.name = "odd) name (x", .state = 'D', .parent = 7, .ticks = 250, .voluntary = 11});
  const ProcessReader reader(tree.proc(), tree.cgroups());
  EXPECT_EQ(reader.pids(), std::vector<int64_t>{42});
  const auto p = reader.process(42);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->name, "odd) name (x");
  EXPECT_EQ(p->state, 'D');
  EXPECT_EQ(p->parent, 7);
  EXPECT_EQ(p->cpu_ns, 2'500'000'000);
  EXPECT_EQ(p->io_wait_ns, 120'000'000);
  EXPECT_EQ(p->start_ticks, 5);
  EXPECT_EQ(p->threads, 2);
  EXPECT_EQ(p->command, "python train.py");
  EXPECT_EQ(p->user, "root");
  EXPECT_EQ(p->resident_bytes, 2048 * 1024);
  EXPECT_EQ(p->voluntary, 11);
  EXPECT_EQ(p->involuntary, 3);
  EXPECT_EQ(p->read_bytes, 4096);
  EXPECT_EQ(p->inner_pids, std::vector<int64_t>{7});
  EXPECT_EQ(reader.environment(42, "CUDA_INJECTION64_PATH"), "/x.so");
  EXPECT_FALSE(reader.environment(42, "CUDA"));
  EXPECT_EQ(reader.maps(42, "libtorch"), false);
  EXPECT_EQ(reader.uses_gpu(42), true);
  EXPECT_FALSE(reader.inner_namespace());
}

TEST(ProcessReader, ReadsThreads) {
  ProcTree tree;
  tree.process(42, {.run_ns = 123, .wait_ns = 45});
  const auto threads = ProcessReader(tree.proc()).threads(42);
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0].run_ns, 123);
  EXPECT_EQ(threads[0].wait_ns, 45);
  EXPECT_EQ(threads[0].waits_in, "futex_wait_queue");
}

TEST(ProcessReader, WhatIsMissingIsEmptyNotZero) {
  ProcTree tree;
  tree.write("proc/9/stat", ProcTree::stat(9, "x", 'S', 1, 0, 5));
  const ProcessReader reader(tree.proc(), tree.cgroups());
  const auto p = reader.process(9);
  ASSERT_TRUE(p);
  EXPECT_EQ(p->command, "[x]");
  EXPECT_FALSE(p->resident_bytes || p->voluntary || p->read_bytes);
  EXPECT_FALSE(reader.cgroup_cpu(9));
  EXPECT_FALSE(reader.uses_gpu(9));
  EXPECT_FALSE(reader.process(10));
  tree.write("proc/11/stat", "11 (cut");
  EXPECT_FALSE(reader.process(11));
  EXPECT_TRUE(reader.threads(11).empty());
}

TEST(ProcessReader, ReadsTheHost) {
  ProcTree tree;
  const auto host = ProcessReader(tree.proc()).host();
  EXPECT_EQ(host.cores, 2);
  EXPECT_EQ(host.busy_ticks, 200);
  EXPECT_EQ(host.total_ticks, 1000);
  EXPECT_EQ(host.io_wait_ticks, 100);
  EXPECT_EQ(host.memory_available, 400 * 1024);
}

TEST(ProcessReader, TightestCgroupLimitCounts) {
  ProcTree tree;
  tree.process(42, {});
  tree.write("cgroup/cpu.max", "max 100000\n");
  tree.write("cgroup/job/cpu.max", "250000 100000\n");
  tree.write("cgroup/job/cpu.stat",
             "usage_usec 1\nnr_periods 50\nnr_throttled 20\nthrottled_usec 7\n");
  const ProcessReader reader(tree.proc(), tree.cgroups());
  const auto c = reader.cgroup_cpu(42);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->cores, 2.5);
  EXPECT_EQ(c->periods, 50);
  EXPECT_EQ(c->throttled_periods, 20);
  EXPECT_EQ(c->throttled_ns, 7000);
  tree.write("cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(reader.cgroup_cpu(42)->cores, 0.5);
}

TEST(ProcessReader, ReadsCgroupVersionOne) {
  ProcTree tree;
  tree.process(42, {});
  tree.write("proc/42/cgroup", "5:memory:/job\n4:cpu,cpuacct:/docker/abc\n0::/elsewhere\n");
  // As in a container: the path is the host's, the mounted folder the container's own.
  tree.write("cgroup/cpu/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 77\n");
  tree.write("cgroup/cpu/cpu.cfs_quota_us", "150000\n");
  tree.write("cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const auto c = ProcessReader(tree.proc(), tree.cgroups()).cgroup_cpu(42);
  ASSERT_TRUE(c);
  EXPECT_EQ(c->cores, 1.5);
  EXPECT_EQ(c->throttled_ns, 77);
}

TEST(ProcessReader, ReadsThisProcess) {
  const ProcessReader reader;
  const auto p = reader.process(getpid());
  ASSERT_TRUE(p);
  EXPECT_GT(p->resident_bytes.value_or(0), 0);
  EXPECT_FALSE(reader.threads(getpid()).empty());
  EXPECT_EQ(reader.parent(getpid()), getppid());
}

}  // namespace
}  // namespace saturate::observe
