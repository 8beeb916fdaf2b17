// SPDX-License-Identifier: Apache-2.0
#include "parallel/collective.h"

#include <gtest/gtest.h>

#include <functional>

namespace saturate::parallel {
namespace {

using enum CollectiveKind;
using List = std::vector<Collective>;

const Group kAll = {0, {0, 1, 2, 3}}, kEven = {1, {0, 2}}, kOdd = {1, {1, 3}};
const Group kLow = {2, {0, 1}}, kHigh = {2, {2, 3}};

Collective sum(const Group& group, int64_t count, DType dtype = DType::f32) {
  return {.group = group, .dtype = dtype, .count = count};
}
Collective gather(const Group& group, int64_t count) {
  return {.kind = all_gather, .group = group, .count = count};
}
Collective exchange(const Group& group, std::vector<int64_t> to, std::vector<int64_t> from,
                    CollectiveKind kind = send_receive) {
  return {.kind = kind,
          .group = group,
          .send_counts = std::move(to),
          .receive_counts = std::move(from)};
}
Collective send(int to, int64_t count) {
  std::vector<int64_t> counts(4);
  counts[static_cast<size_t>(to)] = count;
  return exchange(kAll, counts, {0, 0, 0, 0});
}
Collective receive(int from, int64_t count) {
  std::vector<int64_t> counts(4);
  counts[static_cast<size_t>(from)] = count;
  return exchange(kAll, {0, 0, 0, 0}, counts);
}

// A step of four ranks: data parallel over kEven and kOdd, tensor parallel over kLow and kHigh, and
// something over all.
std::vector<List> step() {
  std::vector<List> lists;
  for (int r = 0; r < 4; ++r) {
    const Group& dp = r % 2 ? kOdd : kEven;
    const Group& tp = r < 2 ? kLow : kHigh;
    lists.push_back({sum(tp, 8), gather(dp, 5), sum(tp, 3, DType::f64), sum(kAll, 1)});
  }
  return lists;
}

TEST(Collectives, ListsThatFitAreSilent) {
  EXPECT_EQ(mismatch_of(step()), "");
  EXPECT_EQ(mismatch_of(std::vector<List>(4)), "");
  EXPECT_EQ(mismatch_of(std::vector<List>{{send(1, 3), receive(3, 4)},
                                          {receive(0, 3), send(2, 5)},
                                          {receive(1, 5), send(3, 2)},
                                          {receive(2, 2), send(0, 4)}}),
            "");
  // A ring that sends and receives at once.
  EXPECT_EQ(mismatch_of(std::vector<List>{{exchange(kAll, {0, 2, 0, 0}, {0, 0, 0, 5})},
                                          {exchange(kAll, {0, 0, 3, 0}, {2, 0, 0, 0})},
                                          {exchange(kAll, {0, 0, 0, 4}, {0, 3, 0, 0})},
                                          {exchange(kAll, {5, 0, 0, 0}, {0, 0, 4, 0})}}),
            "");
  // Rank 0 is done with its message while rank 1 still waits for rank 2.
  EXPECT_EQ(mismatch_of(std::vector<List>{{send(1, 1), sum({3, {0, 2}}, 1)},
                                          {exchange(kAll, {0, 0, 7, 0}, {1, 0, 0, 0})},
                                          {sum({3, {0, 2}}, 1), receive(1, 7)},
                                          {}}),
            "");
}

TEST(Collectives, TheFirstEntryThatDiffersIsNamedOnBothRanks) {
  auto lists = step();
  lists[2].erase(lists[2].begin() + 1);  // dropped
  EXPECT_EQ(mismatch_of(lists),
            "the collectives over ranks 0, 2 differ: entry 1 of rank 0 is all_gather of 5 f32 over "
            "ranks 0, 2; rank 2 has none left after its 0");
  lists = step();
  std::swap(lists[3][0], lists[3][2]);  // another order
  EXPECT_EQ(mismatch_of(lists),
            "the collectives over ranks 2, 3 differ: entry 0 of rank 2 is all_reduce of 8 f32 over "
            "ranks 2, 3; entry 0 of rank 3 is all_reduce of 3 f64 over ranks 2, 3");
  lists = step();
  lists[1][1].group = kLow;  // wrong group
  EXPECT_NE(mismatch_of(lists).find("entry 2 of rank 0 is all_reduce of 3 f64 over ranks 0, 1; "
                                    "entry 1 of rank 1 is all_gather of 5 f32 over ranks 0, 1"),
            std::string::npos)
      << mismatch_of(lists);
  lists = step();
  lists[1][1].group = kEven;  // one that it is not in
  EXPECT_NE(mismatch_of(lists).find("a rank of the group is wanted"), std::string::npos);
  for (const auto& change : std::vector<std::function<void(Collective&)>>{
           [](Collective& c) { c.kind = all_gather; }, [](Collective& c) { c.count = 9; },
           [](Collective& c) { c.dtype = DType::bf16; }, [](Collective& c) { c.root = 1; }}) {
    lists = step();
    change(lists[1][0]);
    EXPECT_NE(mismatch_of(lists).find("entry 0 of rank 0 is all_reduce of 8 f32 over ranks 0, 1; "
                                      "entry 0 of rank 1 is"),
              std::string::npos);
  }
}

TEST(Collectives, CountsAreComparedBetweenEveryTwoRanks) {
  const Group three = {0, {0, 1, 2}};
  std::vector<List> lists = {{exchange(three, {1, 2, 3}, {1, 4, 7}, all_to_all)},
                             {exchange(three, {4, 5, 6}, {2, 5, 8}, all_to_all)},
                             {exchange(three, {7, 8, 9}, {3, 6, 9}, all_to_all)}};
  EXPECT_EQ(mismatch_of(lists), "");
  lists[1][0].send_counts[2] = 1;  // the first rank agrees with both
  EXPECT_EQ(
      mismatch_of(lists),
      "the collectives over ranks 0, 1, 2 differ: entry 0 of rank 1 is all_to_all of f32 (4 to "
      "rank 0, 5 to rank 1, 1 to rank 2, 2 from rank 0, 5 from rank 1, 8 from rank 2) over "
      "ranks 0, 1, 2; entry 0 of rank 2 is all_to_all of f32 (7 to rank 0, 8 to rank 1, 9 to "
      "rank 2, 3 from rank 0, 6 from rank 1, 9 from rank 2) over ranks 0, 1, 2");
}

TEST(Collectives, ASendMeetsItsReceive) {
  EXPECT_NE(mismatch_of(std::vector<List>{{send(1, 3)}, {receive(0, 4)}, {}, {}})
                .find("entry 0 of rank 0 is send_receive of f32 (3 to rank 1) over ranks 0, 1, 2, "
                      "3; entry 0 of rank 1 is send_receive of f32 (4 from rank 0)"),
            std::string::npos);
  EXPECT_NE(mismatch_of(std::vector<List>{{send(1, 3)}, {}, {}, {}})
                .find("rank 1 has none left after its 0"),
            std::string::npos);
}

TEST(Collectives, EqualSendsInARowMeetOneReceiveEach) {
  const auto to_1 = exchange(kAll, {0, 2, 0, 0}, {0, 0, 0, 0}),
             from_0 = exchange(kAll, {0, 0, 0, 0}, {2, 0, 0, 0}),
             to_0 = exchange(kAll, {2, 0, 0, 0}, {0, 0, 0, 0}),
             from_1 = exchange(kAll, {0, 0, 0, 0}, {0, 2, 0, 0});
  EXPECT_EQ(mismatch_of(std::vector<List>{{to_1, to_1, from_1}, {from_0, from_0, to_0}, {}, {}}),
            "");
  EXPECT_NE(mismatch_of(std::vector<List>{{to_1, to_1, from_1}, {from_0, to_0, from_0}, {}, {}}),
            "");
}

TEST(Collectives, WhoWaitsForEverIsNamed) {
  // Every sequence fits by itself; the orders of two groups do not.
  const std::vector<List> lists = {
      {sum(kLow, 1), sum(kAll, 1)}, {sum(kAll, 1), sum(kLow, 1)}, {sum(kAll, 1)}, {sum(kAll, 1)}};
  EXPECT_EQ(
      mismatch_of(lists),
      "the collectives wait for each other for ever; rank 0 at entry 0: all_reduce of 1 f32 "
      "over ranks 0, 1; rank 1 at entry 0: all_reduce of 1 f32 over ranks 0, 1, 2, 3; rank 2 "
      "at entry 0: all_reduce of 1 f32 over ranks 0, 1, 2, 3; rank 3 at entry 0: all_reduce of "
      "1 f32 over ranks 0, 1, 2, 3");
  // A ring that sends before it receives.
  EXPECT_NE(mismatch_of(std::vector<List>{{send(1, 1), receive(2, 1)},
                                          {send(2, 1), receive(0, 1)},
                                          {send(0, 1), receive(1, 1)},
                                          {}})
                .find("wait for each other"),
            std::string::npos);
}

}  // namespace
}  // namespace saturate::parallel
