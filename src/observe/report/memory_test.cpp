// SPDX-License-Identifier: Apache-2.0
#include "observe/report/memory.h"

#include <gtest/gtest.h>

#include <functional>

#include "base/json.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

using testing::Simulator;

// Steps that allocate up to `peak(step)` MiB and free half of it again.
Diagnosis run(const std::function<int64_t(int)>& peak) {
  Simulator s;
  std::vector<MemorySample> memory;
  for (int i = 0; i < 40; ++i) {
    s.begin_step(i);
    memory.push_back({s.now_ns(), (peak(i) << 20) / 2, int64_t{8} << 30, 0});
    for (int k = 0; k < 10; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
    memory.push_back({s.now_ns(), peak(i) << 20, int64_t{8} << 30, 0});
    s.synchronize();
  }
  Trace t = s.take();
  t.memory = memory;
  return diagnose(*make_capture(std::move(t)), "memory");
}

TEST(Memory, PeakGrowthAndPictureAreReported) {
  const Diagnosis g = run([](int i) { return 1000 + 20 * i; });
  const MemoryUse& m = g.device().memory;
  EXPECT_EQ(m.allocated.most(), 1780.0 * (1 << 20));
  EXPECT_EQ(m.reserved.most(), 8.0 * (1 << 30));
  EXPECT_NEAR(m.growth, 1.5, 0.1);
  EXPECT_NE(memory_drift(g).find(" MiB a step"), std::string::npos);
  EXPECT_NE(render_text(g).find("DRIFT    what the program allocates on device 0 grew"),
            std::string::npos);
  EXPECT_NE(render_text(g).find("at most 1.7 GiB allocated of 8.0 GiB reserved"), std::string::npos)
      << memory_text(g);
  const Json json = parse_json(render_json(g), "test");
  EXPECT_NEAR(json["devices"][0]["memory"]["growth"].number().value(), m.growth, 1e-9);
  EXPECT_GT(json["devices"][0]["memory"]["allocated_over_time"].size(), 20u);
  EXPECT_NE(
      render_html(g).find("aria-label=\"Device 0, memory over time, allocated, most 1.7 GiB last "),
      std::string::npos);
}

TEST(Memory, ASawtoothIsNoGrowth) {
  const Diagnosis g = run([](int i) { return 1000 + i % 3; });
  EXPECT_EQ(g.device().memory.growth, 1);
  EXPECT_EQ(memory_drift(g), "");
  EXPECT_EQ(render_text(g).find("DRIFT"), std::string::npos);
}

// Taken step by step at the start and kept: no sample comes later.
TEST(Memory, WhatIsTakenOnceIsNoGrowth) {
  Simulator s;
  std::vector<MemorySample> memory;
  for (int i = 0; i < 60; ++i) {
    s.begin_step(i);
    if (i < 20) memory.push_back({s.now_ns(), int64_t{i + 1} << 30, int64_t{i + 1} << 30, 0});
    for (int k = 0; k < 10; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
    s.synchronize();
  }
  Trace t = s.take();
  t.memory = memory;
  t.memory_by_calls = true;
  const Diagnosis g = diagnose(*make_capture(std::move(t)), "memory");
  EXPECT_EQ(g.device().memory.growth, 1);
  EXPECT_NE(render_text(g).find("Memory that the program took from CUDA"), std::string::npos);
  EXPECT_NE(memory_html(g).find("by the program's calls to CUDA"), std::string::npos);
  EXPECT_EQ(parse_json(render_json(g), "test")["devices"][0]["memory"]["source"], "cuda_calls");
}

TEST(Memory, WhatWasTakenBeforeTheStepsCounts) {
  Simulator s;
  s.host(1'000'000);
  const std::vector<MemorySample> memory = {{s.now_ns() - 500'000, 7 << 20, 9 << 20, 0}};
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 10; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
    s.synchronize();
  }
  Trace t = s.take();
  t.memory = memory;
  const Diagnosis g = diagnose(*make_capture(std::move(t)), "memory");
  EXPECT_EQ(g.device().memory.allocated.first(), 7 << 20);
  EXPECT_EQ(g.device().memory.reserved.last(), 9 << 20);
  EXPECT_NE(memory_html(g).find("aria-label"), std::string::npos);
}

TEST(Memory, OfAWatchedRunIsTheDrivers) {
  Diagnosis g = run([](int) { return 1; });
  g.analysis.devices[0].memory = {};
  EXPECT_EQ(memory_html(g), "") << "nothing known, nothing shown";
  for (int i = 0; i < 60; ++i) g.counters.memory[2].add(i * 500'000'000LL, 1e9 + 5e7 * i);
  EXPECT_NE(memory_drift(g).find("the memory used of GPU 2 grew"), std::string::npos);
  EXPECT_NE(memory_html(g).find("GPU 2, by the driver"), std::string::npos);
  g.counters.memory.clear();
  for (int i = 0; i < 60; ++i) g.counters.memory[2].add(i * 500'000'000LL, i < 5 ? 1e8 * i : 5e8);
  EXPECT_EQ(memory_drift(g), "") << "taken once at the start";
}

}  // namespace
}  // namespace saturate::observe
