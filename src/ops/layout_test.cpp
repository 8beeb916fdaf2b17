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

// Its messages are kept to few multiprocessors, which the sums of all ranks are not.
TEST(Layout, APipelineOverAllRanksHasAGroupOfItsOwn) {
  parallel::run_lockstep(2, [](parallel::Communicator& c) {
    const Layout stages(c, {.pp = 2});
    EXPECT_EQ(stages.group({Axis::pp}).ranks, (Ranks{0, 1}));
    EXPECT_NE(stages.group({Axis::pp}).id, c.world().id);
    EXPECT_EQ(Layout(c, {.dp = 2}).group({Axis::dp}).id, c.world().id);
  });
}

// Two copies, in halves of dp: what each parameter's ranks share, and who adds up what.
TEST(Layout, KnowsWhoSharesACopy) {
  parallel::run_lockstep(16, [](parallel::Communicator& c) {
    const Layout layout(c, {.tp = 2, .dp = 8, .ep = 4, .dp_shard = 4});
    const int r = c.rank(), tp = r % 2, first = r / 8 * 8;  // of the copy
    const auto of = [&](std::vector<Axis> axes) { return layout.sharers(axes); };
    EXPECT_EQ(of({Axis::cp, Axis::dp}).sharers.ranks,
              (Ranks{first + tp, first + 2 + tp, first + 4 + tp, first + 6 + tp}));
    EXPECT_EQ(of({Axis::cp, Axis::dp}).replicas.ranks, (Ranks{r % 8, r % 8 + 8}));
    EXPECT_EQ(of({Axis::cp, Axis::dp}).sharers.axes, "dp_shard");
    EXPECT_EQ(of({Axis::tp, Axis::cp, Axis::dp}).sharers.size(), 8);
    EXPECT_EQ(of({Axis::tp, Axis::cp, Axis::dp}).replicas.ranks, (Ranks{r % 8, r % 8 + 8}));
    // Four experts' ranks are neighbours; two of each expert lie in a copy.
    EXPECT_EQ(of({Axis::edp}).sharers.ranks, (Ranks{first + r % 4, first + 4 + r % 4}));
    EXPECT_EQ(of({Axis::edp}).replicas.ranks, (Ranks{r % 8, r % 8 + 8}));
    double value = r;
    c.wait(c.start({.group = of({Axis::edp}).sharers, .dtype = DType::f64, .count = 1}, nullptr,
                   &value, {}),
           {});
    EXPECT_EQ(value, 2 * first + 4 + 2 * (r % 4));
  });
  // One copy: the group itself.
  parallel::run_lockstep(2, [](parallel::Communicator& c) {
    const Layout layout(c, {.dp = 2});
    constexpr Axis kAxes[] = {Axis::cp, Axis::dp};
    EXPECT_EQ(layout.sharers(kAxes).sharers.id, c.world().id);
    EXPECT_EQ(layout.sharers(kAxes).replicas.size(), 1);
  });
}

}  // namespace
}  // namespace saturate
