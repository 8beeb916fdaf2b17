// SPDX-License-Identifier: Apache-2.0
// Layouts, models and options drawn at random: whatever check_layout() accepts computes what one
// rank computes.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cstdlib>
#include <span>

#include "base/philox.h"
#include "train/layout_harness_test.h"

namespace saturate::train {
namespace {

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  int64_t below(int64_t n) {
    return static_cast<int64_t>(philox4x32(seed_, next_++, 0).x[0] % static_cast<uint64_t>(n));
  }
  const char* of(std::initializer_list<const char*> list) {
    return list.begin()[below(static_cast<int64_t>(list.size()))];
  }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  uint64_t seed_, next_ = 0;
};

constexpr int kMostRanks = 8;

LayoutCase drawn(Draw& draw) {
  LayoutCase c;
  const auto& models = harness_models();
  c.model = models[static_cast<size_t>(draw.below(std::ssize(models)))];
  int64_t extents[4] = {1, 1, 1, 1};  // dp, tp, cp, pp
  int64_t ranks = 1;
  for (int i = 0; i < 3; ++i) {
    const int64_t axis = draw.below(4);
    int64_t& e = extents[axis];
    const int64_t by = draw.one_in(5) && axis != 2 ? 3 : 2;  // cp cuts the rows, which are 64
    if (ranks * by > kMostRanks) continue;
    e *= by;
    ranks *= by;
  }
  const auto [dp, tp, cp, pp] = extents;
  c.layout = fmt::format("dp={},tp={},cp={},pp={},zero={}", dp, tp, cp, pp, draw.below(4));
  if (cp > 1 && draw.one_in(3)) c.layout += ",cp_comm_type=all_gather";
  if (draw.one_in(4)) c.layout += fmt::format(",ep={}", draw.one_in(2) ? 2 : 4);
  if (dp % 2 == 0 && draw.one_in(3)) c.layout += fmt::format(",dp_shard={}", dp / 2);
  if (pp > 1) {
    const std::string schedule = draw.of({"1f1b", "gpipe", "interleaved", "zero-bubble"});
    c.layout += ",schedule=" + schedule;
    if (schedule == "interleaved") c.layout += ",chunks=2";
  }
  if (draw.one_in(2)) c.layout += fmt::format(",recompute={}", draw.of({"selective", "full"}));
  if (draw.one_in(8)) c.layout += ",offload=true";
  c.micro_batches = dp * (pp > 1 ? pp * (1 + draw.below(2)) : 1 + draw.below(3));
  c.variant = draw.of({"", "", "frozen", "averaged", "unclipped"});
  return c;
}

// LAYOUT_SEED draws others.
uint64_t first_seed() {
  const char* text = std::getenv("LAYOUT_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

class LayoutRandom : public testing::TestWithParam<int> {};

TEST_P(LayoutRandom, EqualsOneRank) {
  constexpr int kCases = 50, kMostDraws = 5000;
  Draw draw(first_seed() * 1000 + static_cast<uint64_t>(GetParam()));
  int cases = 0;
  for (int i = 0; i < kMostDraws && cases < kCases; ++i) {
    const LayoutCase c = drawn(draw);
    if (!refusal_of(c).empty()) continue;
    ++cases;
    std::string mistake;
    try {
      mistake = mistake_of(c);
    } catch (const std::exception& e) {
      mistake = e.what();
    }
    EXPECT_EQ(mistake, "") << "again with: LAYOUT_CASE='" << c.text()
                           << "' saturate_train_test --gtest_filter=LayoutCase.*";
  }
  EXPECT_GT(cases, 0);
}

INSTANTIATE_TEST_SUITE_P(Shards, LayoutRandom, testing::Range(0, 6));

}  // namespace
}  // namespace saturate::train
