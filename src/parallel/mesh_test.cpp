// SPDX-License-Identifier: Apache-2.0
#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "parallel/shard_spec.h"

namespace saturate::parallel {
namespace {

using enum MeshAxis;
using Shape = std::vector<int64_t>;
using Axes = std::vector<MeshAxis>;

std::string refusal(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "";
}

TEST(Mesh, TheOrderDecidesWhoAreNeighbours) {
  const MeshExtents extents{.tp = 2, .cp = 3, .dp = 4, .pp = 5};
  const Mesh mesh(120, extents);
  for (int rank = 0; rank < 120; ++rank)
    EXPECT_EQ(rank, mesh.coordinate(tp, rank) +
                        2 * (mesh.coordinate(cp, rank) +
                             3 * (mesh.coordinate(dp, rank) + 4 * mesh.coordinate(pp, rank))));
  const Mesh turned(120, extents, "pp-dp-tp-cp");
  EXPECT_EQ(turned.coordinate(pp, 1), 1);
  EXPECT_EQ(turned.coordinate(dp, 5), 1);
  EXPECT_EQ(turned.coordinate(tp, 20), 1);
  EXPECT_EQ(turned.coordinate(cp, 40), 1);
}

TEST(Mesh, GroupsOfAnyAxesAreAPartition) {
  for (const char* order : {"tp-cp-dp-pp", "dp-pp-tp-cp"}) {
    const Mesh mesh(48, {.tp = 2, .cp = 2, .dp = 4, .pp = 3, .ep = 8}, order);
    for (const Axes& axes : {Axes{tp}, Axes{dp, cp}, Axes{tp, cp, dp, pp}, Axes{}, Axes{ep},
                             Axes{edp}, Axes{ep, edp}, Axes{edp, pp}}) {
      int extent = 1;
      for (const MeshAxis a : axes) extent *= mesh.extent(a);
      for (int rank = 0; rank < 48; ++rank) {
        const auto group = mesh.group(axes, rank);
        EXPECT_EQ(std::ssize(group), extent);
        EXPECT_EQ(std::count(group.begin(), group.end(), rank), 1);
        for (const int other : group) EXPECT_EQ(mesh.group(axes, other), group);
      }
    }
  }
  const Mesh mesh(8, {.tp = 2, .dp = 2, .pp = 2});
  EXPECT_EQ(mesh.group(Axes{tp}, 5), (std::vector{4, 5}));
  EXPECT_EQ(mesh.group(Axes{dp}, 5), (std::vector{5, 7}));
  EXPECT_EQ(mesh.group(Axes{pp}, 5), (std::vector{1, 5}));
}

// ep and edp number the ranks of one stage: whatever the order, they cover it and never leave it.
TEST(Mesh, KnowsTheLowestOfAGroupWithoutItsList) {
  const MeshExtents extents{.tp = 2, .cp = 3, .dp = 2, .pp = 2, .ep = 4};
  const std::vector<MeshAxis> sets[] = {{MeshAxis::tp},
                                        {MeshAxis::cp, MeshAxis::dp},
                                        {MeshAxis::pp},
                                        {MeshAxis::ep},
                                        {MeshAxis::edp},
                                        {MeshAxis::edp, MeshAxis::pp},
                                        {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp}};
  for (const std::string_view order : {"tp-cp-dp-pp", "pp-dp-tp-cp"}) {
    const Mesh mesh(24, extents, order);
    for (const auto& axes : sets)
      for (int r = 0; r < 24; ++r) EXPECT_EQ(mesh.lowest(axes, r), mesh.group(axes, r).front());
  }
}

TEST(Mesh, ExpertsFoldTheRanksOfAStage) {
  const Mesh mesh(24, {.tp = 2, .cp = 1, .dp = 4, .pp = 3, .ep = 4}, "tp-pp-dp-cp");
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(mesh.group(Axes{ep, edp}, rank), mesh.group(Axes{tp, cp, dp}, rank));
    for (const int other : mesh.group(Axes{ep}, rank))
      EXPECT_EQ(mesh.coordinate(edp, other), mesh.coordinate(edp, rank));
  }
}

TEST(Mesh, RefusesWithValueRuleAndWayOut) {
  EXPECT_NE(refusal([] { Mesh(4, {.dp = 3}); }).find("dp 3"), std::string::npos);
  EXPECT_NE(refusal([] { Mesh(4, {.tp = -2, .dp = -2}); }), "");
  EXPECT_NE(refusal([] { Mesh(4, {.tp = 1 << 30, .dp = 1 << 30}); }), "");
  EXPECT_NE(refusal([] { Mesh(4, {.dp = 4, .ep = 3}); }).find("ep 3 does not divide the 4 ranks"),
            std::string::npos);
  for (const char* order : {"", "tp-cp-dp", "tp-cp-dp-dp", "tp-cp-dp-ep", "tp-cp-dp-pp-tp", "tp"})
    EXPECT_NE(refusal([&] { Mesh(1, {}, order); }).find("such as tp-cp-dp-pp"), std::string::npos);
  EXPECT_NE(refusal([] { Mesh(1, {}).group(Axes{ep, dp}, 0); }), "");
}

// Each element exactly once over the coordinates of the cutting axes, on every other axis the same,
// and in the order of the local array.
void expect_exact_cover(const ShardSpec& spec, const Shape& shape, const Mesh& mesh) {
  int64_t size = 1, local_size = 1;
  for (const int64_t n : shape) size *= n;
  for (const int64_t n : spec.local_shape(shape, mesh)) local_size *= n;
  std::vector<int> holders(static_cast<size_t>(size));
  for (int rank = 0; rank < mesh.size(); ++rank) {
    int64_t sum = 0, last = -1;
    for (const ShardRun& run : spec.local_runs(shape, mesh, rank)) {
      EXPECT_GT(run.length, 0);
      EXPECT_GT(run.global_offset, last);  // ascending, and joined where they touch
      last = run.global_offset + run.length;
      sum += run.length;
      ASSERT_LE(last, size);
      for (int64_t e = run.global_offset; e < last; ++e) ++holders[static_cast<size_t>(e)];
    }
    EXPECT_EQ(sum, local_size);
  }
  const int copies = static_cast<int>(mesh.size() * local_size / size);
  EXPECT_EQ(std::count(holders.begin(), holders.end(), copies), size);
}

TEST(ShardSpec, TheRanksTogetherHoldTheWholeOnce) {
  const Mesh mesh(24, {.tp = 2, .cp = 1, .dp = 3, .pp = 4, .ep = 6});
  const Shape qkv = {12 + 4 + 4, 7}, gated = {2 * 10, 3};
  expect_exact_cover({}, {5, 3}, mesh);
  expect_exact_cover({{{0, tp, {12, 4, 4}}}}, qkv, mesh);
  expect_exact_cover({{{0, tp, {10, 10}}}}, gated, mesh);
  expect_exact_cover({{{1, tp}}}, {3, 14}, mesh);
  expect_exact_cover({{{0, dp}, {1, tp, {2, 6}}}}, {9, 8}, mesh);
  expect_exact_cover({{{1, tp}}}, {3, 4, 5}, mesh);
  expect_exact_cover({{{0, ep}}}, {6, 5, 3}, mesh);
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const auto draw = [&](int n) {
      return 1 + static_cast<int>(random() % static_cast<unsigned>(n));
    };
    const Mesh drawn(3 * 4, {.tp = 4, .dp = 3}, round % 2 ? "dp-tp-cp-pp" : "tp-cp-dp-pp");
    Shape blocks, shape = {0, 3 * draw(3), draw(3)};
    for (int n = draw(4); n > 0; --n) shape[0] += blocks.emplace_back(4 * draw(5));
    expect_exact_cover({{{0, tp, blocks}, {1, dp}}}, shape, drawn);
  }
}

TEST(ShardSpec, PackedRowsAreCutBlockByBlock) {
  const Mesh mesh(2, {.tp = 2});
  const ShardSpec spec{{{0, tp, {4, 2, 2}}}};
  EXPECT_EQ(spec.local_shape(Shape{8, 10}, mesh), (Shape{4, 10}));
  EXPECT_EQ(spec.local_runs(Shape{8, 10}, mesh, 1),
            (std::vector<ShardRun>{{20, 20}, {50, 10}, {70, 10}}));
  EXPECT_EQ((ShardSpec{{{1, tp}}}.local_runs(Shape{2, 6}, mesh, 0)),
            (std::vector<ShardRun>{{0, 3}, {6, 3}}));
  EXPECT_EQ(ShardSpec{}.local_runs(Shape{8, 10}, mesh, 1), (std::vector<ShardRun>{{0, 80}}));
}

TEST(ShardSpec, RefusesWithValueRuleAndWayOut) {
  const Mesh mesh(8, {.tp = 4, .dp = 2, .ep = 2});
  const auto why = [&](const ShardSpec& spec, const Shape& shape) {
    return refusal([&] { spec.local_runs(shape, mesh, 0); });
  };
  EXPECT_NE(why({{{0, tp}}}, {6, 4})
                .find("block 0 of dimension 0 has 6 elements, which tp cannot "
                      "cut into 4 equal parts: choose tp among the divisors"),
            std::string::npos);
  EXPECT_NE(why({{{0, tp, {8, 2, 2}}}}, {12, 4}).find("block 1 of dimension 0 has 2 elements"),
            std::string::npos);
  EXPECT_NE(why({{{0, tp, {8, 8}}}}, {12, 4}).find("add up to 16, but its size is 12"),
            std::string::npos);
  EXPECT_NE(why({{{0, tp, {12, 0}}}}, {12, 4}), "");
  EXPECT_NE(why({{{2, tp}}}, {8, 4}), "");
  EXPECT_NE(why({{{-1, tp}}}, {8, 4}), "");
  EXPECT_NE(why({{{0, pp}}}, {8, 4}), "");
  EXPECT_NE(why({{{0, tp}, {1, tp}}}, {8, 4}), "");
  EXPECT_NE(why({{{0, tp}, {0, dp}}}, {8, 4}), "");
  EXPECT_NE(why({{{0, ep}, {1, tp}}}, {8, 4}), "");
}

TEST(ShardSpec, GradientsAreSummedOverTheAxesThatDoNotCut) {
  EXPECT_EQ(ShardSpec{}.reduce_axes(), (Axes{tp, cp, dp}));
  EXPECT_EQ((ShardSpec{{{0, tp}}}.reduce_axes()), (Axes{cp, dp}));
  EXPECT_EQ((ShardSpec{{{0, dp}, {1, tp}}}.reduce_axes()), (Axes{cp}));
  EXPECT_EQ((ShardSpec{{{0, ep}}}.reduce_axes()), (Axes{edp}));
}

}  // namespace
}  // namespace saturate::parallel
