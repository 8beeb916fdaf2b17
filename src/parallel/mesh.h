// SPDX-License-Identifier: Apache-2.0
// How ranks are laid out: named axes in an order that is data, and a second view of the same ranks
// for experts.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace saturate::parallel {

// Tensor, context, data and pipeline parallel cut the ranks once. Experts fold the ranks of one
// pipeline stage (dp x cp x tp) a second time: ep ranks hold different experts, edp ("expert data
// parallel") ranks the same ones.
enum class MeshAxis : uint8_t { tp, cp, dp, pp, ep, edp };
const char* name_of(MeshAxis axis) noexcept;

struct MeshExtents {
  int tp = 1, cp = 1, dp = 1, pp = 1;
  int ep = 1;  // divides tp * cp * dp
  // Neighbours in dp that share one copy of what dp ranks hold alike, and dp / dp_shard such copies
  // (PyTorch's dp_shard and dp_replicate); 0: all of dp share one. Divides dp.
  int dp_shard = 0;
};

class Mesh {
 public:
  // Innermost axis first: the ranks that talk most (tensor) are neighbours on one host, those that
  // talk least (pipeline) are farthest apart.
  static constexpr std::string_view kOrder = "tp-cp-dp-pp";

  // Errors: invalid_argument (an extent below 1, a product other than `ranks`, ep that does not
  // divide tp * cp * dp, dp_shard that does not divide dp, an order that is not a permutation of tp,
  // cp, dp and pp).
  Mesh(int ranks, const MeshExtents& extents, std::string_view order = kOrder);

  int size() const noexcept { return ranks_; }
  int extent(MeshAxis axis) const noexcept { return extent_[static_cast<size_t>(axis)]; }
  int coordinate(MeshAxis axis, int rank) const noexcept;

  // Copies of shared state, and the one that `rank` has a share of (MeshExtents::dp_shard).
  int copies() const noexcept { return extent(MeshAxis::dp) / dp_shard_; }
  int copy_of(int rank) const noexcept { return coordinate(MeshAxis::dp, rank) / dp_shard_; }

  // The ranks whose coordinates equal those of `rank` on every axis but `axes`, lowest first; `rank`
  // is one of them. Over all ranks these lists are a partition, as Communicator::make_group needs.
  // Errors: invalid_argument (ep or edp together with tp, cp or dp: two views of the same ranks).
  std::vector<int> group(std::span<const MeshAxis> axes, int rank) const;
  // The first of them, without a list: what tells groups apart on thousands of ranks.
  int lowest(std::span<const MeshAxis> axes, int rank) const;

 private:
  int ranks_;
  int dp_shard_;
  int extent_[6];
  int stride_[4];                         // of tp, cp, dp, pp: ranks between neighbours
  int in_stage(int rank) const noexcept;  // number of a rank among those of its pipeline stage
  MeshAxis order_[4];
};

}  // namespace saturate::parallel
