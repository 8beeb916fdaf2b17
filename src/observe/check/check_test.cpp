// SPDX-License-Identifier: Apache-2.0
#include "observe/check/check.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "observe/testing/fake_gpu.h"
#include "observe/testing/proc_tree.h"

namespace saturate::observe {
namespace {

using testing::open_fake_gpu;
using testing::ProcTree;

CheckInput input(const ProcTree& tree, GpuMonitor* monitor) {
  CheckInput in;
  in.monitor = monitor;
  in.reader = ProcessReader(tree.proc(), tree.cgroups());
  in.cupti = "API version 130000";
  in.cuda_runtime = 13000;
  in.shared_memory_bytes = 8ll << 30;
  in.user = 1000;
  return in;
}

Finding named(const std::vector<Finding>& findings, const std::string& name) {
  for (const Finding& f : findings) {
    if (f.name == name) return f;
  }
  ADD_FAILURE() << "no line " << name;
  return {};
}

TEST(Check, HealthyMachineIsAllOk) {
  ProcTree tree;
  std::filesystem::create_directories(tree.root / "proc/self/ns");
  std::filesystem::create_symlink("pid:[4026531836]", tree.root / "proc/self/ns/pid");
  tree.write("proc/self/stat", "42 (saturate) R 1");
  tree.process(42, {});
  tree.write("cgroup/job/cpu.stat", "nr_periods 0\n");
  tree.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 0\n");
  tree.write("proc/sys/kernel/yama/ptrace_scope", "0\n");
  std::string why;
  const auto monitor = open_fake_gpu(
      R"({"driver": "580.1", "cuda": 13000, "gpus": [{"gpm": {}, "reasons": 1, "mig": 0,
          "sm_clock": 345, "max_clock": 1980, "persistence": 1}]})",
      why);
  ASSERT_TRUE(monitor) << why;
  const auto findings = check_machine(input(tree, monitor.get()));
  for (const Finding& f : findings) EXPECT_EQ(f.grade, Grade::ok) << f.name << ": " << f.found;
  EXPECT_FALSE(any_failed(findings));
  const Json j = parse_json(findings_json(findings), "test");
  EXPECT_EQ(j["ready"], true);
  EXPECT_EQ(j["findings"].size(), findings.size());
}

TEST(Check, EachTroubleHasItsRemedy) {
  ProcTree tree;
  std::filesystem::create_directories(tree.root / "proc/self/ns");
  std::filesystem::create_symlink("pid:[4026532999]", tree.root / "proc/self/ns/pid");
  tree.write("proc/self/stat", "42 (saturate) R 1");
  tree.process(42, {});
  tree.write("cgroup/job/cpu.stat", "nr_periods 100\nnr_throttled 30\nthrottled_usec 5\n");
  tree.write("cgroup/job/cpu.max", "400000 100000\n");
  tree.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1\n");
  tree.write("proc/sys/kernel/yama/ptrace_scope", "1\n");
  std::string why;
  const auto monitor = open_fake_gpu(
      R"({"driver": "525.1", "cuda": 12000, "gpus": [{"reasons": 32, "persistence": 0},
          {"mig": 1, "gpm": {}}, {"utilization": {"error": 15}}]})",
      why);
  ASSERT_TRUE(monitor) << why;
  CheckInput in = input(tree, monitor.get());
  in.cupti = "";
  in.injection = "/opt/nsys/libinject.so";
  in.shared_memory_bytes = 64 << 20;
  const auto findings = check_machine(in);
  for (const Finding& f : findings)
    EXPECT_EQ(f.remedy.empty(), f.grade == Grade::ok || f.grade == Grade::skip) << f.name;
  EXPECT_EQ(named(findings, "CUDA runtime").grade, Grade::fail);
  EXPECT_EQ(named(findings, "GPU 0 clocks").grade, Grade::warn);
  EXPECT_NE(named(findings, "GPU 0 clocks").found.find("thermal"), std::string::npos);
  EXPECT_EQ(named(findings, "GPU 0 persistence").grade, Grade::warn);
  EXPECT_EQ(named(findings, "GPU 0 GPM").grade, Grade::skip);
  EXPECT_EQ(named(findings, "GPU 1 MIG").grade, Grade::warn);
  EXPECT_EQ(named(findings, "GPU 1 clocks").grade, Grade::skip);
  EXPECT_EQ(named(findings, "GPU 2").grade, Grade::fail);
  EXPECT_EQ(named(findings, "CUPTI").grade, Grade::warn);
  EXPECT_NE(named(findings, "CUPTI owner").found.find("/opt/nsys"), std::string::npos);
  EXPECT_EQ(named(findings, "counters").grade, Grade::warn);
  EXPECT_EQ(named(findings, "ptrace scope").grade, Grade::warn);
  EXPECT_EQ(named(findings, "pid namespace").grade, Grade::warn);
  EXPECT_NE(named(findings, "CPU limit").found.find("4.00 of 2 cores; 30.0%"), std::string::npos);
  EXPECT_EQ(named(findings, "/dev/shm").grade, Grade::warn);
  EXPECT_TRUE(any_failed(findings));
  in.user = 0;
  EXPECT_EQ(named(check_machine(in), "counters").grade, Grade::ok);
  EXPECT_EQ(named(check_machine(in), "ptrace scope").grade, Grade::ok);
}

TEST(Check, NamesTheOwnerOfCuptiInRunningPrograms) {
  ProcTree tree;
  tree.process(42, {});  // its environment has CUDA_INJECTION64_PATH=/x.so
  std::string why;
  const auto monitor =
      open_fake_gpu(R"({"gpus": [{"processes": [{"pid": 42}, {"pid": 43}]}]})", why);
  ASSERT_TRUE(monitor) << why;
  const std::string text = findings_text(check_machine(input(tree, monitor.get())));
  EXPECT_NE(text.find("process 42 on GPU 0 was started with /x.so"), std::string::npos) << text;
  EXPECT_EQ(text.find("process 43"), std::string::npos);
}

TEST(Check, NoDriverFailsWithTheReason) {
  ProcTree tree;
  CheckInput in = input(tree, nullptr);
  in.no_gpu = "no libnvidia-ml; install the driver";
  const auto findings = check_machine(in);
  EXPECT_EQ(named(findings, "driver").grade, Grade::fail);
  EXPECT_EQ(named(findings, "driver").remedy, in.no_gpu);
  EXPECT_NE(findings_text(findings).find("FAIL  driver"), std::string::npos);
}

}  // namespace
}  // namespace saturate::observe
