// SPDX-License-Identifier: Apache-2.0
#include "observe/system/counters.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "observe/report/counters_rows.h"

namespace saturate::observe {
namespace {

constexpr int64_t kRoot = 100;

GpuView gpu(int index, int utilisation, double power) {
  GpuView g;
  g.info.index = index;
  g.info.name = "GPU " + std::to_string(index);
  g.reading.utilisation = utilisation;
  g.reading.power_w = power;
  g.reading.memory_used = int64_t{1} << 30;
  g.reading.sm_mhz = 1500;
  g.reading.clock_reasons = kReasonPowerCap | kReasonIdle;
  return g;
}

ProcessView process(int64_t pid, int64_t parent, double cpu, std::vector<int> gpus) {
  ProcessView p;
  p.pid = pid, p.parent = parent, p.seen = true;
  p.cpu = cpu;
  p.voluntary = 1000.0;
  for (const int g : gpus) p.gpus.push_back({g, {}, {}});
  return p;
}

// The run is 100 > 101 > 102, of which 102 uses GPU 1; 7 is another's and uses GPU 0.
Snapshot snapshot(double interval_s, int utilisation, double power) {
  Snapshot s;
  s.interval_s = interval_s;
  s.gpus = {gpu(0, 99, 700), gpu(1, utilisation, power)};
  s.processes = {process(102, 101, 0.5, {1}), process(101, kRoot, 1.0, {}),
                 process(kRoot, 1, 0.25, {}), process(7, 1, 30.0, {0})};
  s.host_io_wait = 0.25;
  return s;
}

const Counter* find(const Counters& c, std::string_view id) {
  for (const Counter& v : c.values)
    if (id == v.info->id) return &v;
  return nullptr;
}

Counters two_samples() {
  CounterCollector collector(kRoot);
  collector.add(snapshot(0, 1, 1));  // without rates
  collector.add(snapshot(0.5, 40, 300));
  collector.add(snapshot(0.5, 60, 500));
  return collector.finish();
}

// A neighbour on the same GPU that takes more and more is no growth of this program.
TEST(Counters, MemoryIsTheRunsWhereTheDriverTells) {
  CounterCollector collector(kRoot);
  for (int i = 0; i < 4; ++i) {
    Snapshot s = snapshot(0.5, 40, 300);
    s.gpus[1].reading.memory_used = int64_t{i + 2} << 30;
    if (i > 0) s.processes[0].gpus[0].memory = 3 << 20;  // before, not told
    if (i == 3) s.processes[0].gpus[0].memory.reset();
    collector.add(s);
  }
  const Curve curve = collector.finish().memory.at(1);
  EXPECT_EQ(curve.samples(), 2);
  EXPECT_EQ(curve.most(), 3 << 20);
}

TEST(Counters, AreThoseOfTheRunAlone) {
  const Counters c = two_samples();
  EXPECT_EQ(c.seconds, 1.0);
  ASSERT_EQ(c.gpus.size(), 1u);
  EXPECT_EQ(c.gpus.at(1), "GPU 1");
  EXPECT_EQ(c.clocks_held_by.at(1), clock_reason_names(kReasonPowerCap));
  const Counter* utilisation = find(c, "utilisation");
  ASSERT_NE(utilisation, nullptr);
  EXPECT_EQ(utilisation->gpu, 1);
  EXPECT_EQ(utilisation->range.mean, 50);
  EXPECT_EQ(utilisation->range.least, 40);
  EXPECT_EQ(utilisation->range.most, 60);
  EXPECT_EQ(utilisation->first, 40);
  EXPECT_EQ(utilisation->last, 60);
  EXPECT_EQ(find(c, "cpu_cores")->range.mean, 1.75);
  EXPECT_EQ(find(c, "voluntary_switches")->range.mean, 3000);
  EXPECT_EQ(find(c, "io_wait")->range.mean, 25);
}

TEST(Counters, WhatIsNotKnownIsNotThere) {
  const Counters c = two_samples();
  for (const char* id : {"sm_active", "tensor_active", "dram_active", "pcie_sent", "cpu_throttled",
                         "involuntary_switches"})
    EXPECT_EQ(find(c, id), nullptr) << id;
}

TEST(Counters, AStepTakesItsShareOfARate) {
  const std::vector<CounterRow> rows = counter_rows(two_samples(), 10e6);
  std::map<std::string, std::string> a_step;
  for (const CounterRow& row : rows) a_step[row.title] = row.per_step;
  EXPECT_EQ(a_step.at("power"), "4 J");
  EXPECT_EQ(a_step.at("voluntary switches"), "30");
  EXPECT_EQ(a_step.at("utilisation"), "");
  for (const CounterRow& row : counter_rows(two_samples(), 0)) EXPECT_EQ(row.per_step, "");
}

TEST(Counters, ComeWithTheirMeanOverGpusAndUnit) {
  Counters c = two_samples();
  const CounterInfo& power = *counter_info("power");
  EXPECT_EQ(counter_mean(c, power), 400);
  Counter other = *find(c, "power");
  other.gpu = 3;
  other.range.mean = 200;
  c.values.push_back(other);
  EXPECT_EQ(counter_mean(c, power), 300);
  EXPECT_EQ(counter_text(power, 300), "300 W");
  EXPECT_FALSE(counter_mean(c, *counter_info("pcie_sent")));
}

TEST(Counters, SurviveTheirFile) {
  const saturate::testing::TempFolder folder;
  const Counters c = two_samples();
  write_counters(c, folder.path());
  const Counters back = read_counters(folder.path());
  EXPECT_EQ(counters_text(back, 10e6), counters_text(c, 10e6));
  EXPECT_NE(counters_text(c, 10e6).find("GPU 1"), std::string::npos);
  ASSERT_EQ(back.memory.size(), 1u);
  EXPECT_EQ(back.memory.at(1).points().size(), 2u);
  EXPECT_EQ(back.memory.at(1).most(), 1 << 30);
  EXPECT_EQ(back.memory.at(1).points()[1].time_ns, c.memory.at(1).points()[1].time_ns);
  EXPECT_TRUE(read_counters(folder.path() + "/none").empty());
}

TEST(Counters, AFileThatIsNoneSaysWhere) {
  const saturate::testing::TempFolder folder;
  for (const char* text : {"", "{", "[]", "{\"schema_version\": 2}", "{\"schema_version\": \"1\"}",
                           "{\"schema_version\": 1, \"seconds\": 1, \"no_gpu\": 3}"}) {
    std::ofstream(folder.path() + "/counters.json") << text;
    try {
      read_counters(folder.path());
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("counters.json"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace saturate::observe
