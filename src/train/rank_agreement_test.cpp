// SPDX-License-Identifier: Apache-2.0
#include "train/rank_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "base/config_keys.h"
#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "kernels/decode/beam_step.h"
#include "parallel/lockstep.h"

namespace saturate::train {
namespace {

using saturate::testing::TempFolder;
using saturate::testing::write_file;

RunConfig config_with(const std::vector<std::string>& settings) {
  RunConfig config;
  for (const std::string& s : settings) set_key(config, s);
  return config;
}

std::string difference_of(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  const Device cpu{};
  return disagreement({settings_of(config_with(a), cpu), settings_of(config_with(b), cpu)});
}

TEST(RankAgreement, NamesTheKeyTheValuesAndTheRanks) {
  EXPECT_EQ(difference_of({"optimizer.lr=0.001"}, {"optimizer.lr=0.002"}),
            "optimizer.lr is 0.001 on rank 0, 0.002 on rank 1");
  std::vector<Settings> many(9, {{"a", "1"}, {"b", "x"}});
  many[3] = many[4] = many[7] = {{"a", "2"}, {"b", "x"}};
  many[8] = {{"a", "1"}};
  EXPECT_EQ(disagreement(many),
            "a is 1 on ranks 0-2, 5-6, 8, 2 on ranks 3-4, 7; b is x on ranks 0-7, unset on rank 8");
  EXPECT_EQ(disagreement({many[0], many[1]}), "");
}

TEST(RankAgreement, ComparesEveryKeyButThoseThatMayDiffer) {
  const std::vector<std::string> may = {"quiet", "data.workers", "data.prefetch", "train.device"};
  const Settings settings = settings_of(RunConfig{}, Device{});
  for (const std::string_view key : config::key_names()) {
    const bool compared = std::ranges::any_of(settings, [&](auto& s) { return s.first == key; });
    EXPECT_EQ(compared, std::ranges::find(may, key) == may.end()) << key;
  }
  EXPECT_EQ(difference_of({"data.workers=1", "quiet=true"}, {"data.workers=7"}), "");
}

TEST(RankAgreement, WhatThePresetSaysMayBeSaid) {
  EXPECT_EQ(difference_of({"model.preset=tiny"}, {"model.preset=tiny", "train.precision=fp32"}),
            "");
  const int64_t heads = *[] {
    RunConfig c = config_with({"model.preset=tiny"});
    for (auto& [name, value] : settings_of(c, Device{}))
      if (name == "model.heads") return std::optional<int64_t>(std::stoll(value));
    return std::optional<int64_t>();
  }();
  EXPECT_EQ(difference_of({"model.preset=tiny"},
                          {"model.preset=tiny", "model.heads=" + std::to_string(heads)}),
            "");
}

TEST(RankAgreement, LooksIntoTheText) {
  TempFolder folder;
  const std::string text = folder / "a.tsv";
  const auto looked = [&](const std::string& content) {
    write_file(text, content);
    return settings_of(config_with({"data.train=" + text}), Device{});
  };
  const Settings before = looked("a\tb\n"), after = looked("a\tc\n");
  EXPECT_NE(disagreement({before, after}).find("text of " + text), std::string::npos);
  EXPECT_EQ(disagreement({before, looked("a\tb\n")}), "");
}

TEST(RankAgreement, LooksAtTheEnvironment) {
  const Settings before = settings_of(RunConfig{}, Device{});
  ::setenv("SATURATE_MATMUL", "naive", 1);
  const Settings after = settings_of(RunConfig{}, Device{});
  ::unsetenv("SATURATE_MATMUL");
  EXPECT_EQ(disagreement({before, after}),
            "environment variable SATURATE_MATMUL is unset on rank 0, naive on rank 1");
}

// Every rank hears the same, and none goes on.
TEST(RankAgreement, AllRanksRefuseTogether) {
  std::vector<std::string> said(3);
  parallel::run_lockstep(3, [&](parallel::Communicator& ranks) {
    const auto agree = [&](const std::string& lr) {
      require_agreement(settings_of(config_with({"optimizer.lr=" + lr}), Device{}), ranks);
    };
    agree("0.001");
    try {
      agree(ranks.rank() == 2 ? "0.002" : "0.001");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      said[static_cast<size_t>(ranks.rank())] = e.what();
    }
  });
  for (const std::string& text : said)
    EXPECT_NE(text.find("optimizer.lr is 0.001 on ranks 0-1, 0.002 on rank 2"), std::string::npos)
        << text;
}

// What the kernels take is what the configuration promises.
TEST(ConfigRanges, BeamsGoAsFarAsTheKernels) {
  for (const char* key : {"translate.beam", "validate.beam"})
    EXPECT_EQ(config::find_key(key)->high, static_cast<double>(kernels::kMaxBeam)) << key;
}

}  // namespace
}  // namespace saturate::train
