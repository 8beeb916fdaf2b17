// SPDX-License-Identifier: Apache-2.0
// How ranks are laid out and which part of a parameter a rank holds. Today every parameter is
// replicated and only dp exceeds 1; parameters carry their spec so that the other axes need no new
// format.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace saturate::parallel {

// Data, pipeline, context, tensor and expert parallel.
enum class MeshAxis : uint8_t { dp, pp, cp, tp, ep };
constexpr const char* kMeshAxisNames[] = {"dp", "pp", "cp", "tp", "ep"};

// Ranks as a box: rank = ((((d * pp) + p) * cp + c) * ep + e) * tp + t, so that the ranks that talk
// most (tensor) are neighbours on one host and those that talk least (data) are farthest apart.
struct DeviceMesh {
  int dp = 1, pp = 1, cp = 1, tp = 1, ep = 1;

  int size() const noexcept { return dp * pp * cp * tp * ep; }
  int extent(MeshAxis axis) const noexcept;
  int coordinate(MeshAxis axis, int rank) const noexcept;
  // Errors: invalid_argument (an axis below 1, or a size other than `ranks`).
  void check(int ranks) const;
};

// For each dimension of a parameter the axis that cuts it into equal parts, or `whole`.
// No entries: replicated on every rank, whatever the shape.
struct ShardSpec {
  static constexpr int whole = -1;
  std::vector<int> axis_of_dimension;  // a MeshAxis as int, or whole

  bool replicated() const noexcept;
  // Errors: invalid_argument (wrong number of entries, no such axis, an axis used twice, a
  // dimension that its axis does not divide).
  void check(std::span<const int64_t> shape, const DeviceMesh& mesh) const;
  // The part of `shape` that one rank holds; shape itself when replicated.
  std::vector<int64_t> local_shape(std::span<const int64_t> shape, const DeviceMesh& mesh) const;
  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};

}  // namespace saturate::parallel
