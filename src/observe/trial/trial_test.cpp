// SPDX-License-Identifier: Apache-2.0
#include "observe/trial/trial.h"

#include <gtest/gtest.h>

namespace saturate::observe {
namespace {

TrialRun run(double wall_s, double step_ms, double launches = 100) {
  TrialRun r;
  r.wall_s = wall_s;
  r.step_ns = 1e6 * step_ms;
  r.launches_a_step = launches;
  return r;
}

Remedy remedy(const char* title, double promised, bool ceiling = true) {
  Remedy r;
  r.title = title;
  r.environment = {{"A", "1"}};
  r.promise.emplace();
  r.promise->speedup = promised;
  r.promise->ceiling = ceiling;
  return r;
}

TEST(Trial, StepsAreComparedWhereTheyAreAlike) {
  const std::vector<TrialRun> unchanged = {run(20, 9), run(22, 11)};
  TrialGain g = gain_of(unchanged, run(9, 2.5));
  EXPECT_TRUE(g.by_step);
  EXPECT_DOUBLE_EQ(g.factor, 4);
  // Half of the launches is another step; without any steps there is only the run.
  for (const TrialRun& other : {run(10.5, 2.5, 50), run(10.5, 0, 0)}) {
    g = gain_of(unchanged, other);
    EXPECT_FALSE(g.by_step);
    EXPECT_DOUBLE_EQ(g.factor, 2);
  }
  TrialRun failed = run(5, 2);
  failed.outcome = TrialOutcome::failed;
  EXPECT_EQ(gain_of(unchanged, failed).factor, 0);
  EXPECT_EQ(gain_of({failed}, run(5, 2)).factor, 0);
}

// The report promised for steps of another size than those that the runs are compared by.
TEST(Trial, StepsAreThoseOfTheReport) {
  const std::vector<TrialRun> unchanged = {run(20, 10), run(20, 10)};
  EXPECT_DOUBLE_EQ(gain_of(unchanged, run(10, 2.5), 110).factor, 4);
  const TrialGain g = gain_of(unchanged, run(10, 2.5), 800);
  EXPECT_FALSE(g.by_step);
  EXPECT_DOUBLE_EQ(g.factor, 2);
}

// Layers that were taken for steps: one in ten waits for data, so the median has no part in it.
TEST(Trial, UnevenStepsAreComparedByTheirMeans) {
  TrialRun before = run(20, 0.2), after = run(9, 0.2);
  before.mean_step_ns = 3e6;
  after.mean_step_ns = 0.5e6;
  const TrialGain g = gain_of({before}, after);
  EXPECT_DOUBLE_EQ(g.factor, 6);
  EXPECT_TRUE(g.by_mean);
  before.mean_step_ns = 0.3e6;  // a machine that stood still
  EXPECT_DOUBLE_EQ(gain_of({before}, after).factor, 1);
}

TEST(Trial, UnchangedRunsSayWhatADifferenceIsWorth) {
  EXPECT_NEAR(spread_of({run(20, 10), run(21, 11)}), 0.1, 1e-9);
  EXPECT_NEAR(spread_of({run(20, 0), run(21, 11)}), 0.05, 1e-9);
  EXPECT_EQ(spread_of({run(20, 10)}), 0);
}

TEST(Trial, TheTableSetsPromiseBesideGain) {
  Trial t;
  t.command = "python train.py";
  t.unchanged = {run(20, 10), run(20.2, 10.1)};
  t.rows.push_back({remedy("kept", 4), run(9, 3), {}});
  t.rows.push_back({remedy("exceeded", 1.5), run(9, 4), {}});
  t.rows.push_back({remedy("guess", 1.5, false), run(9, 4), {}});
  t.rows.push_back({remedy("broken", 2), run(1, 0), {}});
  t.rows.back().run.outcome = TrialOutcome::failed;
  t.rows.back().run.note = "failed with exit code 3; its last lines:";
  t.rows.back().run.last_lines = "       | Boom\n";
  t.rows.push_back({remedy("in its range", 1.5, false), run(9, 4), {}});
  t.rows.back().remedy.promise->low = 1.2;
  t.rows.back().remedy.promise->high = 2.6;
  for (TrialRow& row : t.rows) row.gain = gain_of(t.unchanged, row.run);
  const std::string text = trial_text(t);
  const auto has = [&](const char* part) { return text.find(part) != text.npos; };
  EXPECT_TRUE(has("up to 4.00x"));
  EXPECT_TRUE(has("3.35x"));
  EXPECT_TRUE(has("about 1.50x"));
  EXPECT_TRUE(has("keep A=1 python train.py"));
  EXPECT_TRUE(has("       | Boom\n"));
  EXPECT_TRUE(has("differ by 1.0%"));
  const Json j = trial_json(t);
  EXPECT_EQ(j["remedies"][0]["within_promise"], Json(true));
  EXPECT_EQ(j["remedies"][1]["within_promise"], Json(false));
  EXPECT_TRUE(j["remedies"][2]["within_promise"].is_null());  // an estimate
  EXPECT_TRUE(j["remedies"][3]["gained"].is_null());
  EXPECT_EQ(j["remedies"][3]["outcome"], Json("failed"));
  EXPECT_TRUE(has("1.20x to 2.60x"));
  EXPECT_EQ(j["remedies"][4]["within_promise"], Json(true));
  EXPECT_EQ(text.find("more than was promised"), text.rfind("more than was promised"));
  EXPECT_TRUE(has("more than was promised"));
}

}  // namespace
}  // namespace saturate::observe
