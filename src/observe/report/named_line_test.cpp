// SPDX-License-Identifier: Apache-2.0
// Which line a verdict names.
#include <gtest/gtest.h>

#include "observe/report/host_lines.h"

namespace saturate::observe {
namespace {

HostLine line(const char* function, double share) {
  HostLine l;
  l.at = {function, "train.py", 7, "x()"};
  l.innermost = l.at;
  l.share = share;
  return l;
}

Diagnosis of(const char* verdict) {
  Diagnosis g;
  g.verdict.id = verdict;
  g.analysis.devices.resize(1);
  g.analysis.devices[0].budget[Leaf::host_code] = 1'000'000;
  g.analysis.devices[0].host_lines.idle_ns = 500'000;
  return g;
}

// "": none
std::string named(Diagnosis g) {
  name_line(g);
  return g.verdict.line ? g.verdict.line->at.function : "";
}

TEST(NamedLine, OfFewSamplesNearlyAllMustAgree) {
  const auto host = [](int64_t samples, double share) {
    Diagnosis g = of("host_bound");
    g.analysis.devices[0].host_lines.samples = samples;
    g.analysis.devices[0].host_lines.lines = {line("sort", share), line("other", 1 - share)};
    return named(g);
  };
  EXPECT_EQ(host(9, 1.0), "sort");
  EXPECT_EQ(host(9, 0.45), "");
  EXPECT_EQ(host(1, 1.0), "");
  EXPECT_EQ(host(30, 0.45), "sort");
  EXPECT_EQ(host(30, 0.3), "");
}

TEST(NamedLine, OfWaitsBeforeWhatFollowsThem) {
  Diagnosis g = of("sync_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.samples = h.wait_samples = 40;
  h.lines = {line("step", 0.9)};
  EXPECT_EQ(named(g), "step") << "where no wait was sampled";
  h.waits = {line("item", 0.9)};
  EXPECT_EQ(named(g), "item");
  g.verdict.id = "host_bound";
  EXPECT_EQ(named(g), "step");
}

// What lies between launches may be more in all, and is another cause.
TEST(NamedLine, OfTheHostsLongStretches) {
  Diagnosis g = of("host_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.samples = 60;
  h.lines = {line("forward", 0.6), line("get_batch", 0.4)};
  h.long_samples = 24;
  h.long_lines = {line("get_batch", 1.0)};
  EXPECT_EQ(named(g), "get_batch");
  h.long_samples = 18;
  EXPECT_EQ(named(g), "forward") << "where they are less than a third";
  h.long_samples = 24;
  g.verdict.id = "launch_bound";
  EXPECT_EQ(named(g), "forward");
}

TEST(NamedLine, OfCompilingBeforeOtherWaits) {
  Diagnosis g = of("load_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.samples = h.compiling_samples = 40;
  h.lines = {line("take_turn", 0.6), line("update", 0.4)};
  EXPECT_EQ(named(g), "take_turn") << "where no compiling was sampled";
  h.compiling = {line("update", 1.0)};
  EXPECT_EQ(named(g), "update");
}

TEST(NamedLine, OfLittleIdleTimeOnlyWhereItGrows) {
  Diagnosis g = of("host_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.idle_ns = 50'000;
  h.samples = 40;
  h.lines = {line("append", 0.9)};
  EXPECT_EQ(named(g), "");
  g.verdict.id = "growth_bound";
  EXPECT_EQ(named(g), "append");
}

TEST(NamedLine, OfTheDevicesWorkWhereMostOfItIsKnown) {
  Diagnosis g = of("gpu_bound");
  WorkLines& w = g.analysis.devices[0].work_lines;
  w.samples = 40;
  w.lines = {line("forward", 0.2)};
  w.lines[0].backward = 0.3;
  w.known = 0.4;
  EXPECT_EQ(named(g), "");
  w.lines[0].share = 0.6;  // of two fifths: over a third of all
  EXPECT_EQ(named(g), "forward");
  w.lines[0].share = 0.2;
  w.known = 0.6;
  EXPECT_EQ(named(g), "forward");
  name_line(g);
  EXPECT_NE(g.verdict.why.find("with its part of the backward pass"), std::string::npos);
}

TEST(NamedLine, LinesOfOneFunctionTogether) {
  Diagnosis g = of("host_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.samples = 40;
  h.lines = {line("draw", 0.2), line("draw", 0.2), line("other", 0.3)};
  EXPECT_EQ(named(g), "");
  h.lines[0].function_share = h.lines[1].function_share = 0.6;
  EXPECT_EQ(named(g), "draw");
}

TEST(NamedLine, WhoHoldsTheInterpretersLockIsInJson) {
  Diagnosis g = of("host_bound");
  HostLines& h = g.analysis.devices[0].host_lines;
  h.samples = 40;
  h.lines = {line("learn", 0.8)};
  name_line(g);
  EXPECT_TRUE(named_line_json(g.verdict)["lock_holder"].is_null());
  h.lines[0].holder = line("hand_over", 1).at;
  h.lines[0].holder_thread = "thread 7";
  name_line(g);
  const Json named = named_line_json(g.verdict);
  EXPECT_EQ(named["lock_holder"]["function"], "hand_over");
  EXPECT_EQ(named["lock_holder_thread"], "thread 7");
}

// Other types are asked for around the call of a model.
TEST(NamedLine, OfProductsWhereTheirModelIsCalled) {
  Diagnosis g = of("gpu_bound");
  g.fixes.numbers = true;
  Fix fix;
  fix.kind = FixKind::mixed;
  fix.cures = true;
  g.fixes.worth = {fix};
  WorkLines& w = g.analysis.devices[0].product_lines;
  w.samples = 40;
  w.known = 0.9;
  w.lines = {line("attention", 0.4), line("feed_forward", 0.3)};
  w.calls = {line("train", 0.7)};
  EXPECT_EQ(named(g), "train");
  g.fixes.worth[0].kind = FixKind::float64;
  g.analysis.devices[0].double_lines = w;
  EXPECT_EQ(named(g), "attention");
}

}  // namespace
}  // namespace saturate::observe
