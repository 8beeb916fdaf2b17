// SPDX-License-Identifier: Apache-2.0
#include "parallel/shard_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace saturate::parallel {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "shard_spec", what);
}

std::vector<int64_t> blocks_of(const ShardSpec::Cut& cut, std::span<const int64_t> shape) {
  return cut.blocks.empty() ? std::vector{shape[static_cast<size_t>(cut.dimension)]} : cut.blocks;
}

void check_cut(const ShardSpec::Cut& cut, std::span<const int64_t> shape, const Mesh& mesh) {
  const char* axis = name_of(cut.axis);
  if (cut.dimension < 0 || cut.dimension >= std::ssize(shape))
    refuse(fmt::format("dimension {} is cut by {}: the parameter has dimensions 0 to {}",
                       cut.dimension, axis, std::ssize(shape) - 1));
  if (cut.axis == MeshAxis::pp || cut.axis == MeshAxis::edp)
    refuse(
        fmt::format("{} cuts dimension {}: tp, cp, dp or ep can; pp gives whole parameters to "
                    "its stages and edp holds copies",
                    axis, cut.dimension));
  const auto blocks = blocks_of(cut, shape);
  const int64_t size = shape[static_cast<size_t>(cut.dimension)];
  if (const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0}); sum != size)
    refuse(
        fmt::format("the blocks of dimension {} add up to {}, but its size is {}: name every "
                    "block once",
                    cut.dimension, sum, size));
  const int parts = mesh.extent(cut.axis);
  for (size_t b = 0; b < blocks.size(); ++b)
    if (blocks[b] < 1 || blocks[b] % parts != 0)
      refuse(fmt::format(
          "block {} of dimension {} has {} elements, which {} cannot cut into {} equal parts: "
          "choose {} among the divisors of {}, or pad the block",
          b, cut.dimension, blocks[b], axis, parts, axis, std::max<int64_t>(blocks[b], 1)));
}

}  // namespace

bool ShardSpec::cut_by(MeshAxis axis) const noexcept {
  return std::any_of(cuts.begin(), cuts.end(), [&](const Cut& c) { return c.axis == axis; });
}

void ShardSpec::check(std::span<const int64_t> shape, const Mesh& mesh) const {
  for (size_t i = 0; i < cuts.size(); ++i) {
    check_cut(cuts[i], shape, mesh);
    for (size_t j = 0; j < i; ++j) {
      if (cuts[i].dimension == cuts[j].dimension)
        refuse(fmt::format("dimension {} is cut by {} and by {}: one axis can cut it",
                           cuts[i].dimension, name_of(cuts[j].axis), name_of(cuts[i].axis)));
      if (cuts[i].axis == cuts[j].axis)
        refuse(fmt::format("{} cuts dimensions {} and {}: it can cut one", name_of(cuts[i].axis),
                           cuts[j].dimension, cuts[i].dimension));
    }
  }
  if (cuts.size() > 1 && cut_by(MeshAxis::ep))
    refuse("ep cuts together with another axis: experts are whole on their rank, cut by ep alone");
}

std::vector<int64_t> ShardSpec::local_shape(std::span<const int64_t> shape,
                                            const Mesh& mesh) const {
  check(shape, mesh);
  std::vector<int64_t> local(shape.begin(), shape.end());
  for (const Cut& cut : cuts) local[static_cast<size_t>(cut.dimension)] /= mesh.extent(cut.axis);
  return local;
}

// From the innermost dimension outwards: the runs of one index of a dimension are those of the
// dimensions within it, moved; runs that touch are joined.
std::vector<ShardRun> ShardSpec::local_runs(std::span<const int64_t> shape, const Mesh& mesh,
                                            int rank) const {
  check(shape, mesh);
  std::vector<ShardRun> runs = {{0, 1}};
  int64_t stride = 1;
  const auto append = [](std::vector<ShardRun>& to, int64_t offset, int64_t length) {
    if (!to.empty() && to.back().global_offset + to.back().length == offset)
      to.back().length += length;
    else
      to.push_back({offset, length});
  };
  for (size_t d = shape.size(); d-- > 0;) {
    std::vector<ShardRun> mine = {{0, shape[d]}};  // indices of this dimension
    for (const Cut& cut : cuts) {
      if (cut.dimension != static_cast<int>(d)) continue;
      mine.clear();
      int64_t begin = 0;
      for (const int64_t block : blocks_of(cut, shape)) {
        const int64_t part = block / mesh.extent(cut.axis);
        append(mine, begin + part * mesh.coordinate(cut.axis, rank), part);
        begin += block;
      }
    }
    std::vector<ShardRun> next;
    const bool whole = runs.size() == 1 && runs[0].length == stride;
    for (const ShardRun& m : mine) {
      if (whole) {
        append(next, m.global_offset * stride, m.length * stride);
        continue;
      }
      for (int64_t i = m.global_offset; i < m.global_offset + m.length; ++i)
        for (const ShardRun& r : runs) append(next, i * stride + r.global_offset, r.length);
    }
    runs = std::move(next);
    stride *= shape[d];
  }
  return runs;
}

std::vector<MeshAxis> ShardSpec::reduce_axes() const {
  if (cut_by(MeshAxis::ep)) return {MeshAxis::edp};
  std::vector<MeshAxis> axes;
  for (const MeshAxis axis : {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp})
    if (!cut_by(axis)) axes.push_back(axis);
  return axes;
}

}  // namespace saturate::parallel
