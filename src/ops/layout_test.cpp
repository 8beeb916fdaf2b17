// SPDX-License-Identifier: Apache-2.0
#include "ops/layout.h"

#include <gtest/gtest.h>

#include "parallel/lockstep.h"

namespace saturate {
namespace {

using Axis = parallel::MeshAxis;
using Ranks = std::vector<int>;

TEST(Layout, OfOneRankHasGroupsOfOne) {
  const Layout layout;
  EXPECT_EQ(layout.group({Axis::tp}).size(), 1);
  EXPECT_EQ(layout.group({Axis::tp, Axis::cp, Axis::dp}).ranks, Ranks{0});
  EXPECT_EQ(layout.row_parts(), 1);
  EXPECT_EQ(layout.row_part(), 0);
}

TEST(Layout, KnowsEachRanksGroups) {
  parallel::run_lockstep(8, [](parallel::Communicator& c) {
    const Layout layout(c, {.tp = 2, .cp = 2, .dp = 2, .ep = 4});
    const int r = c.rank();
    EXPECT_EQ(layout.group({Axis::tp}).ranks, (Ranks{r & ~1, r | 1}));
    EXPECT_EQ(layout.group({Axis::dp}).ranks, (Ranks{r & 3, r | 4}));
    EXPECT_EQ(layout.group({Axis::cp, Axis::dp}).size(), 4);
    EXPECT_EQ(layout.group({Axis::pp}).ranks, Ranks{r});
    EXPECT_EQ(layout.group({Axis::tp, Axis::cp, Axis::dp}).id, c.world().id);
    EXPECT_EQ(layout.group({Axis::edp}).id, layout.group({Axis::dp}).id);  // the same pairs
    EXPECT_EQ(layout.row_parts(), 4);
    EXPECT_EQ(layout.row_part(), r % 4);
    // They work: a sum over each pair of neighbours.
    double value = r;
    c.wait(c.start({.group = layout.group({Axis::tp}), .dtype = DType::f64, .count = 1}, nullptr,
                   &value, {}),
           {});
    EXPECT_EQ(value, (r & ~1) + (r | 1));
  });
}

}  // namespace
}  // namespace saturate
