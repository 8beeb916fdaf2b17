// SPDX-License-Identifier: Apache-2.0
#include "model/slot_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace saturate::model {
namespace {

TEST(SlotRanges, TakesAndJoins) {
  SlotRanges r(10);
  EXPECT_EQ(r.take(4), 0);
  EXPECT_EQ(r.take(3), 4);
  EXPECT_EQ(r.take(4), std::nullopt);
  EXPECT_EQ(r.take(3), 7);
  r.give_back(0, 4);
  r.give_back(7, 3);
  EXPECT_EQ(r.take(5), std::nullopt);  // seven are free, not together
  r.give_back(4, 3);
  EXPECT_EQ(r.take(10), 0);
  EXPECT_EQ(r.take(1), std::nullopt);
  r.clear();
  EXPECT_EQ(r.take(10), 0);
}

// Against an array of marks: nothing is given twice, and a run that is there is found.
TEST(SlotRanges, AgreesWithMarks) {
  std::mt19937 random(3);
  SlotRanges r(200);
  std::vector<bool> taken(200);
  std::vector<std::pair<int64_t, int64_t>> held;
  for (int i = 0; i < 5000; ++i) {
    if (!held.empty() && random() % 2 == 0) {
      std::swap(held[random() % held.size()], held.back());
      const auto [first, count] = held.back();
      held.pop_back();
      r.give_back(first, count);
      std::fill_n(taken.begin() + first, count, false);
      continue;
    }
    const int64_t count = 1 + static_cast<int64_t>(random() % 40);
    int64_t first = 0, run = 0;  // the first run of marks that is long enough
    while (first + run < 200 && run < count) {
      if (taken[static_cast<size_t>(first + run)]) {
        first += run + 1;
        run = 0;
      } else {
        ++run;
      }
    }
    const auto got = r.take(count);
    ASSERT_EQ(got, run == count ? std::optional(first) : std::nullopt);
    if (!got) continue;
    std::fill_n(taken.begin() + *got, count, true);
    held.emplace_back(*got, count);
  }
}

}  // namespace
}  // namespace saturate::model
