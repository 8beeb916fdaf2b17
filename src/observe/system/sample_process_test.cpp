// SPDX-License-Identifier: Apache-2.0
#include "observe/system/sample_process.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "observe/testing/fake_gpu.h"
#include "observe/testing/proc_tree.h"

namespace saturate::observe {
namespace {

using testing::open_fake_gpu;
using testing::ProcTree;

constexpr const char* kHalf =
    R"({"gpus": [{"utilization": 47, "reasons": 0, "processes": [{"pid": 42, "memory": 4096}]}]})";

// Sleeps and lets the process of the tree go on as `state` says.
struct Program {
  const ProcTree& tree;
  double running = 1, ready = 0;  // of the time
  int64_t run_ns = 0, wait_ns = 0, switches = 0;
  std::chrono::steady_clock::time_point at = std::chrono::steady_clock::now();
  bool operator()(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    const auto now = std::chrono::steady_clock::now();
    const double ns = std::chrono::duration<double, std::nano>(now - at).count();
    at = now;
    run_ns += static_cast<int64_t>(ns * running);
    wait_ns += static_cast<int64_t>(ns * ready);
    switches += 10;
    write();
    return true;
  }
  void write() const {
    tree.process(42, {.ticks = run_ns / 10'000'000,
                      .run_ns = run_ns,
                      .wait_ns = wait_ns,
                      .voluntary = switches});
  }
};

ProcessReport watch(Program program, double seconds = 0.8) {
  program.write();
  std::string why;
  Sampler sampler(open_fake_gpu(kHalf, why), "",
                  ProcessReader(program.tree.proc(), program.tree.cgroups()),
                  {.gpus = {}, .pcie = false, .also = {42}});
  program.at = std::chrono::steady_clock::now();
  return sample_process(sampler, 42, seconds, 0.1, std::ref(program));
}

TEST(Watch, ThreadThatRunsAllTheTime) {
  const ProcTree tree;
  // More than all of it, for the view comes a little after the tree was written; shares end at 1.
  const ProcessReport r = watch({tree, 1.5});
  EXPECT_EQ(r.verdict.word, "launch-bound?") << r.verdict.evidence;
  EXPECT_GE(r.samples, 5);
  ASSERT_EQ(r.busiest.size(), 1u);
  EXPECT_NEAR(r.busiest[0].running, 1, 0.1);
  EXPECT_EQ(r.utilisation->mean, 47);
  EXPECT_FALSE(r.sm || r.power_w);
  EXPECT_GT(r.voluntary->mean, 20);
  const std::string text = process_text(r);
  for (const char* part : {"VERDICT  launch-bound?", "47%", "Not known from outside",
                           "GPM counters", "python train.py"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  const Json j = parse_json(process_json(r), "test");
  EXPECT_EQ(j["verdict"], "launch-bound?");
  EXPECT_TRUE(j["sm_active_percent"].is_null());
}

TEST(Watch, ThreadThatSleeps) {
  const ProcTree tree;
  const ProcessReport r = watch({tree, 0.2});
  EXPECT_EQ(r.verdict.word, "waiting") << r.verdict.evidence;
  EXPECT_NE(r.verdict.evidence.find("futex"), std::string::npos);
}

TEST(Watch, ThreadWithoutACore) {
  const ProcTree tree;
  EXPECT_EQ(watch({tree, 0.5, 0.4}).verdict.word, "cpu-starved");
}

TEST(Watch, ProcessThatEndsAndOneThatNeverWas) {
  const ProcTree tree;
  Program program{tree};
  program.write();
  std::string why;
  Sampler sampler(nullptr, "no driver", ProcessReader(tree.proc(), tree.cgroups()),
                  {.gpus = {}, .also = {42}});
  int left = 3;
  const ProcessReport r = sample_process(sampler, 42, 5, 0.1, [&](double s) {
    if (--left == 0) std::filesystem::remove_all(tree.root / "proc/42");
    return program.tree.root.empty() || (left <= 0 ? true : program(s));
  });
  EXPECT_TRUE(r.ended);
  EXPECT_EQ(r.samples, 2);
  EXPECT_EQ(r.verdict.word, "unknown");
  EXPECT_NE(process_text(r).find("no driver"), std::string::npos);
  Sampler other(nullptr, "", ProcessReader(tree.proc()), {.gpus = {}, .also = {43}});
  EXPECT_THROW(sample_process(other, 43, 1, 0.1, [](double) { return true; }), Error);
}

}  // namespace
}  // namespace saturate::observe
