// SPDX-License-Identifier: Apache-2.0
#include "plan/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "plan/cost.h"
#include "plan/measure.h"
#include "plan/nearest.h"

namespace saturate::plan {
namespace {

constexpr const char* kSmall = R"(name = "small"
device = "test"
memory = "1GiB"
devices_per_host = 4
[compute]
bf16_tflops = 100
bandwidth_gbs = 1000
[inside_host]
latency_us = 10
gbs = 100
[between_hosts]
latency_us = 20
gbs = 10
adapters = 2
)";

std::string refusal(const std::string& toml) {
  try {
    parse_machine(toml, "m.toml");
    return "taken";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Machine, ComesBackFromItsOwnText) {
  for (const std::string_view name : machine_names()) {
    const Machine m = read_machine(std::string(name));
    const std::string text = to_toml(m);
    EXPECT_EQ(to_toml(parse_machine(text, "again")), text);
    EXPECT_GT(m.inside.gbs, m.between.gbs);
  }
  Machine m = parse_machine(kSmall, "m.toml");
  m.operations["linear \"8x8\" > 8x8"] = 0.1;
  m.name = "two\nlines";
  m.inside.tables.push_back({.ranks = 2, .bytes = {8, 1e9}, .us = {1.5, 1e4}});
  const Machine again = parse_machine(to_toml(m), "again");
  EXPECT_EQ(again.operations, m.operations);
  EXPECT_EQ(again.inside.tables[0].us, m.inside.tables[0].us);
}

TEST(Machine, BadFilesAreRefusedWithLineAndRemedy) {
  const std::string small = kSmall;
  EXPECT_EQ(refusal(small + "[compute2]\nx = 1\n"),
            "[machine] m.toml:15: compute2: there is no such key; did you mean 'compute'?; known "
            "are name, device, memory, gpu, watts, devices_per_host, host_copy_gbs, compute, "
            "inside_host, between_hosts, failures, table, operation");
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = small;
    text.replace(text.find(from), from.size(), to);
    return refusal(text);
  };
  EXPECT_EQ(with("memory = \"1GiB\"", "memory = \"lots\""),
            "[machine] m.toml:3: memory: 'lots' is no size; write it as \"139GiB\"");
  EXPECT_EQ(with("latency_us = 10", "latency_us = -1"),
            "[machine] m.toml:9: inside_host.latency_us: it takes a number from 0 to 1e+09");
  EXPECT_EQ(with("gbs = 10\n", ""),
            "[machine] m.toml:11: between_hosts.gbs: it is missing; give it");
  EXPECT_EQ(with("bf16_tflops = 100", "bf16_tflops = nan"),
            "[machine] m.toml:6: compute.bf16_tflops: it takes a number from 1e-06 to 1e+06");
  EXPECT_EQ(refusal(small + "[[table]]\nkind = \"all_reduse\"\n"),
            "[machine] m.toml:16: table.kind: 'all_reduse' is no collective; did you mean "
            "'all_reduce'?; it takes all_reduce, reduce_scatter, all_gather, all_to_all, "
            "send_receive");
  EXPECT_EQ(refusal(small + "[[table]]\nkind = \"all_reduce\"\nwithin = \"host\"\nbytes = [8, "
                            "4]\nus = [1, 2]\n"),
            "[machine] m.toml:18: table.bytes: sizes must ascend, each larger than the one before");
  EXPECT_EQ(refusal("name = "),
            "[config] m.toml:1:8: Error while parsing key-value pair: "
            "encountered end-of-file");
}

// Whatever a file's bytes are, it is taken or refused.
TEST(Machine, DamagedFilesNeverDoMore) {
  std::mt19937 random(1);
  const std::string whole = to_toml(read_machine("h200"));
  for (int i = 0; i < 2000; ++i) {
    std::string text = whole.substr(0, i % 3 == 0 ? random() % whole.size() : whole.size());
    for (uint32_t k = 0; k <= random() % 4 && !text.empty(); ++k)
      text[random() % text.size()] = static_cast<char>(" =[]\"\n-.e9x\xff"[random() % 12]);
    static_cast<void>(refusal(text));
  }
}

using parallel::CollectiveKind;

TEST(Links, TimesAreLatencyAndRateOfEachLevel) {
  const Machine m = parse_machine(kSmall, "m.toml");
  // Two ranks of a host: half of a gather's bytes cross.
  EXPECT_DOUBLE_EQ(collective_us(m, CollectiveKind::all_gather, 2e6, {2, 1}), 10 + 1e6 / 1e5);
  EXPECT_DOUBLE_EQ(collective_us(m, CollectiveKind::all_reduce, 2e6, {2, 1}), 10 + 2e6 / 1e5);
  // Two hosts, one rank of each: the four groups of a host share two adapters.
  EXPECT_DOUBLE_EQ(collective_us(m, CollectiveKind::all_reduce, 2e6, {1, 2}), 20 + 2e6 * 2 / 1e4);
  // All ranks of both hosts: one group on two adapters, and both levels at a time.
  EXPECT_DOUBLE_EQ(collective_us(m, CollectiveKind::all_reduce, 2e6, {4, 2}),
                   20 + 2e6 * 0.5 / 1e4 + 10);
  EXPECT_EQ(collective_us(m, CollectiveKind::all_reduce, 2e6, {1, 1}), 0);
  EXPECT_EQ(placement_of(m, {0, 1, 4, 5}).local, 2);
  EXPECT_EQ(placement_of(m, {0, 1, 4, 5}).hosts, 2);
}

TEST(Links, TablesAreReadBetweenTheirPoints) {
  Machine m = parse_machine(kSmall, "m.toml");
  m.inside.tables = {{.kind = CollectiveKind::all_reduce,
                      .ranks = 2,
                      .bytes = {1e3, 1e6, 2e6},
                      .us = {10, 20, 40}}};
  const auto us = [&](double bytes, int n) {
    return collective_us(m, CollectiveKind::all_reduce, bytes, {n, 1});
  };
  EXPECT_DOUBLE_EQ(us(100, 2), 10);
  EXPECT_DOUBLE_EQ(us(1e6, 2), 20);
  EXPECT_DOUBLE_EQ(us(1.5e6, 2), 30);
  EXPECT_DOUBLE_EQ(us(4e6, 2), 80);  // on at the last rate
  // Four ranks send 1.5 times as much, and the tree is twice as deep.
  EXPECT_DOUBLE_EQ(us(1e6, 4), 2 * 10 + (30 - 10));
  replace_tables(m.inside,
                 {{.kind = CollectiveKind::all_reduce, .ranks = 2, .bytes = {1e3}, .us = {7}}});
  EXPECT_DOUBLE_EQ(us(100, 2), 7);
  ASSERT_EQ(m.inside.tables.size(), 1u);
}

// A machine on which memory traffic alone counts: 1e5 bytes take 1 us.
TEST(Nearest, ScalesTheTwoNearestShapes) {
  Machine m = parse_machine(kSmall, "m.toml");
  m.compute.bandwidth_gbs = 100;
  m.compute.half_mb = m.compute.launch_us = 0;
  m.operations = {{"norm 100x64 > 100x64 bf16", 2.56 * 0.1 * 3},
                  {"norm 400x64 > 400x64 bf16", 2.56 * 0.4 * 5},
                  {"norm 9x64 9x64 > 9x64 bf16", 100},
                  {"norm 200x64 > 200x64 f32", 100},
                  {"normalise 200x64 > 200x64 bf16", 100}};
  // As far from one as from the other: the geometric mean of their factors.
  EXPECT_NEAR(nearest_us(m, "norm 200x64 > 200x64 bf16").value(), 2.56 * 0.2 * std::sqrt(15), 1e-9);
  // At a measured shape it is the measurement.
  EXPECT_NEAR(nearest_us(m, "norm 400x64 > 400x64 bf16").value(), 2.56 * 0.4 * 5, 1e-9);
  EXPECT_FALSE(nearest_us(m, "loss 200x64 > 200x64 bf16"));
  EXPECT_FALSE(nearest_us(m, "norm 200x64 > 200x64 f16"));
}

}  // namespace
}  // namespace saturate::plan
