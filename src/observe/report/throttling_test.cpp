// SPDX-License-Identifier: Apache-2.0
// Clocks that something held down, from the driver's samples to the reports.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/testing/temp_folder.h"
#include "observe/report/counters_rows.h"
#include "observe/report/diagnosis.h"
#include "observe/report/html.h"
#include "observe/report/json.h"
#include "observe/report/text.h"
#include "observe/testing/fix_report.h"
#include "observe/testing/simulator.h"

namespace saturate::observe {
namespace {

Snapshot sample(int mhz, uint64_t reasons, int utilisation) {
  Snapshot s;
  s.interval_s = 0.5;
  GpuView g;
  g.info.index = 0;
  g.info.name = "NVIDIA H200";
  g.info.max_sm_mhz = 2000;
  g.reading.sm_mhz = mhz;
  g.reading.clock_reasons = reasons;
  g.reading.utilisation = utilisation;
  g.reading.activity.tensor = 40.0;
  g.reading.activity.dram = 25.0;
  s.gpus = {g};
  ProcessView p;
  p.pid = 1, p.seen = true;
  p.gpus.push_back({0, {}, {}});
  s.processes = {p};
  return s;
}

// Of ten samples with work six at 1,000 MHz of 2,000 under the power cap, one of them hot as well.
Counters throttled() {
  CounterCollector collector(1);
  for (int i = 0; i < 6; ++i)
    collector.add(sample(1000, kReasonPowerCap | (i == 0 ? uint64_t{kReasonThermal} : 0), 90));
  for (int i = 0; i < 4; ++i) collector.add(sample(2000, 0, 90));
  collector.add(sample(300, kReasonIdle, 0));
  collector.add(sample(300, kReasonPowerCap, 0));  // nothing runs
  return collector.finish();
}

Diagnosis diagnosed(const Counters& counters) {
  testing::Simulator s;
  for (int i = 0; i < 30; ++i) {
    s.begin_step(i);
    for (int k = 0; k < 40; ++k) s.kernel("sm90_gemm_bf16bf16", 100'000);
  }
  return diagnose(*make_capture(s.take()), "run", {}, counters);
}

TEST(Throttling, CountsSamplesWithWorkOnly) {
  const ClockView c = throttled().clocks.at(0);
  EXPECT_EQ(c.samples, 10);
  EXPECT_EQ(c.held, 6);
  EXPECT_NEAR(c.mean_mhz, 1400, 1e-9);
  EXPECT_NEAR(c.speed, (6 * 0.5 + 4) / 10, 1e-9);
  EXPECT_EQ(held_by(c), "power cap 60%, thermal 10%");
}

TEST(Throttling, SurvivesTheFileOfCounters) {
  const saturate::testing::TempFolder folder;
  const Counters c = throttled();
  write_counters(c, folder.path());
  const Counters back = read_counters(folder.path());
  EXPECT_EQ(held_by(back.clocks.at(0)), held_by(c.clocks.at(0)));
  EXPECT_NEAR(back.clocks.at(0).speed, c.clocks.at(0).speed, 1e-12);
  EXPECT_EQ(back.clocks.at(0).held, 6);
}

TEST(Throttling, IsAFixWithACeilingAndAnOverlay) {
  const Diagnosis g = diagnosed(throttled());
  ASSERT_FALSE(g.fixes.worth.empty());
  EXPECT_EQ(g.fixes.worth[0].kind, FixKind::clocks);
  EXPECT_NEAR(g.fixes.worth[0].speedup, 1 / 0.7, 0.02);
  EXPECT_EQ(g.verdict.id, "clock_bound");
  const std::string text = render_text(g), html = render_html(g);
  EXPECT_NE(text.find("CLOCKS   in 60% of the samples with work something held the clock of GPU 0 "
                      "down (power cap 60%, thermal 10%): 1400 MHz on average of 2000"),
            std::string::npos)
      << text;
  EXPECT_NE(html.find("Clocks held down"), std::string::npos);
  const Json json = parse_json(render_json(g), "test");
  EXPECT_NEAR(json["clocks"][0]["held_share"].number().value(), 0.6, 1e-9);
  EXPECT_EQ(json["clocks"][0]["reasons"][0]["reason"], "power cap");
  EXPECT_EQ(json["fixes"][0]["id"], "clocks");
}

// At its default limit a chip that multiplies all the time is held by its power: that is no fault.
TEST(Throttling, ThePowerCapAloneIsNoCause) {
  CounterCollector collector(1);
  for (int i = 0; i < 11; ++i) collector.add(sample(1400, kReasonPowerCap, 100));
  const Diagnosis g = diagnosed(collector.finish());
  EXPECT_EQ(g.verdict.id, "gpu_bound");
  EXPECT_NE(g.verdict.why.find("the clock under the power cap"), std::string::npos)
      << g.verdict.why;
  for (const Fix& f : g.fixes.worth) EXPECT_NE(f.kind, FixKind::clocks);
  const std::string text = render_text(g);
  const size_t at = text.find("clocks at the full rate (1.4");
  EXPECT_NE(at, std::string::npos) << "what it costs is reported\n" << text;
}

// The chip that computes without gaps draws more, and so runs slower.
TEST(Throttling, UnderThePowerCapGapsOfABusyDeviceBringLess) {
  const auto syncs = [](double power_part) {
    ClockHold clock;
    clock.power = power_part > 0;
    clock.power_part = power_part;
    clock.speed = 1 - 0.1 * power_part;
    const testing::Outcome o = testing::run(
        [](testing::Simulator& s) {
          for (int k = 0; k < 40; ++k) s.kernel("sm90_gemm_bf16bf16", 500'000);
          s.copy_out(4, 2'000, true);
          s.host(1'150'000);
        },
        {}, clock);
    EXPECT_TRUE(o.fixes.numbers) << o.fixes.why_not;
    return *testing::find(o.fixes, FixKind::syncs);
  };
  const Fix free = syncs(0), half = syncs(0.5), all = syncs(1);
  EXPECT_GT(free.speedup, kWorthGaps);
  EXPECT_LT(half.speedup, free.speedup);
  EXPECT_LT(all.speedup, half.speedup);
  // A cube root of what the gaps leave undrawn, to first order: two ninths of what is gained.
  EXPECT_NEAR((free.speedup - all.speedup) / (free.speedup - 1), 2.0 / 9, 0.02);
  EXPECT_NEAR(all.step_ns * all.speedup, free.step_ns * free.speedup, 1);
  EXPECT_NE(all.assumes.find("power cap"), std::string::npos);
}

TEST(Throttling, FreeClocksPromiseNothing) {
  CounterCollector collector(1);
  for (int i = 0; i < 10; ++i) collector.add(sample(1500, 0, 90));  // low, but by nobody's reason
  const Diagnosis g = diagnosed(collector.finish());
  EXPECT_EQ(render_text(g).find("CLOCKS"), std::string::npos);
  EXPECT_EQ(render_html(g).find("Clocks held down"), std::string::npos);
  for (const Fix& f : g.fixes.worth) EXPECT_NE(f.kind, FixKind::clocks);
}

// The same counters give the whole run's upper estimates.
TEST(Rooflines, OfAWatchedRunAreUpperEstimates) {
  const Diagnosis g = diagnosed(throttled());
  const std::string text = render_text(g);
  EXPECT_NE(text.find("the whole run: at most 396 TFLOP/s of 16-bit products and 1200 GB/s"),
            std::string::npos)
      << text;
  EXPECT_NE(render_html(g).find("The ring is the whole run"), std::string::npos);
  const Json json = parse_json(render_json(g), "test");
  EXPECT_NEAR(json["run_at_most"]["gb_per_s"].number().value(), 1200, 1e-6);
}

}  // namespace
}  // namespace saturate::observe
