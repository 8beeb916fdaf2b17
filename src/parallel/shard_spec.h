// SPDX-License-Identifier: Apache-2.0
// Which part of a parameter a rank holds, and over which ranks its gradient is summed.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "parallel/mesh.h"

namespace saturate::parallel {

// Consecutive elements of a parameter, which lie one after another in the rank's own array.
struct ShardRun {
  int64_t global_offset = 0, length = 0;
  friend bool operator==(const ShardRun&, const ShardRun&) = default;
};

// No cuts: replicated on every rank, whatever the shape.
struct ShardSpec {
  // Dimension `dimension` consists of `blocks` (their sizes; empty: one block, the whole of it), and
  // `axis` cuts each block into equal parts. Rows of packed matrices are such blocks: {q, kv, kv} of
  // self.qkv, {gate, up} of a gated ffn.in.
  struct Cut {
    int dimension = 0;
    MeshAxis axis = MeshAxis::tp;
    std::vector<int64_t> blocks = {};
    friend bool operator==(const Cut&, const Cut&) = default;
  };
  std::vector<Cut> cuts;

  bool replicated() const noexcept { return cuts.empty(); }
  bool cut_by(MeshAxis axis) const noexcept;
  // Errors: invalid_argument (no such dimension, a dimension or an axis used twice, pp or edp, which
  // cut no parameter, ep together with another axis, blocks that do not add up, a block that its
  // axis does not divide).
  void check(std::span<const int64_t> shape, const Mesh& mesh) const;

  // The following check() first.
  // The part of `shape` that one rank holds; shape itself when replicated.
  std::vector<int64_t> local_shape(std::span<const int64_t> shape, const Mesh& mesh) const;
  // The elements that `rank` holds, in the order of its own row-major array. Over the coordinates of
  // the cutting axes they are the whole parameter once.
  std::vector<ShardRun> local_runs(std::span<const int64_t> shape, const Mesh& mesh,
                                   int rank) const;

  // Axes over which gradients are summed: those of a pipeline stage that do not cut the parameter;
  // edp for what ep cuts. Stages hold different parameters, so pp is not among them (a table that
  // two stages share needs a group of its own).
  std::vector<MeshAxis> reduce_axes() const;

  friend bool operator==(const ShardSpec&, const ShardSpec&) = default;
};

}  // namespace saturate::parallel
