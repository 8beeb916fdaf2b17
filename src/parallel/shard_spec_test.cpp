// SPDX-License-Identifier: Apache-2.0
#include "parallel/shard_spec.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace saturate::parallel {
namespace {

constexpr int kTp = static_cast<int>(MeshAxis::tp);

TEST(DeviceMesh, CoordinatesNumberEveryRankOnce) {
  const DeviceMesh mesh{.dp = 2, .pp = 3, .cp = 1, .tp = 4, .ep = 2};
  mesh.check(48);
  for (int rank = 0; rank < mesh.size(); ++rank) {
    int back = mesh.coordinate(MeshAxis::dp, rank);
    for (MeshAxis axis : {MeshAxis::pp, MeshAxis::cp, MeshAxis::ep, MeshAxis::tp})
      back = back * mesh.extent(axis) + mesh.coordinate(axis, rank);
    EXPECT_EQ(back, rank);
  }
  EXPECT_EQ(mesh.coordinate(MeshAxis::tp, 1), 1);
  EXPECT_EQ(mesh.coordinate(MeshAxis::dp, 24), 1);
}

TEST(DeviceMesh, RefusesWhatDoesNotMultiplyUp) {
  EXPECT_THROW(DeviceMesh{.dp = 3}.check(4), Error);
  EXPECT_THROW((DeviceMesh{.dp = -2, .tp = -2}.check(4)), Error);
  EXPECT_THROW((DeviceMesh{.dp = 1 << 30, .tp = 1 << 30}.check(4)), Error);
}

TEST(ShardSpec, ReplicatedIsTheDefault) {
  const std::vector<int64_t> shape = {7, 5};
  EXPECT_TRUE(ShardSpec{}.replicated());
  EXPECT_EQ(ShardSpec{}.local_shape(shape, {.tp = 4}), shape);
}

TEST(ShardSpec, CutsAndChecks) {
  const std::vector<int64_t> shape = {8, 6};
  const DeviceMesh mesh{.dp = 2, .tp = 4};
  EXPECT_EQ((ShardSpec{{kTp, ShardSpec::whole}}.local_shape(shape, mesh)),
            (std::vector<int64_t>{2, 6}));
  EXPECT_THROW((ShardSpec{{ShardSpec::whole, kTp}}.check(shape, mesh)), Error);
  EXPECT_THROW((ShardSpec{{kTp, kTp}}.check(shape, mesh)), Error);
  EXPECT_THROW((ShardSpec{{kTp}}.check(shape, mesh)), Error);
  EXPECT_THROW((ShardSpec{{9, ShardSpec::whole}}.check(shape, mesh)), Error);
}

}  // namespace
}  // namespace saturate::parallel
