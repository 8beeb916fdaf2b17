// SPDX-License-Identifier: Apache-2.0
#include "parallel/shard_spec.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace saturate::parallel {
namespace {
[[noreturn]] void refuse(const char* op, const std::string& what) {
  throw Error(Errc::invalid_argument, op, what);
}
}  // namespace

int DeviceMesh::extent(MeshAxis axis) const noexcept {
  const int extents[] = {dp, pp, cp, tp, ep};
  return extents[static_cast<int>(axis)];
}

int DeviceMesh::coordinate(MeshAxis axis, int rank) const noexcept {
  for (MeshAxis inner : {MeshAxis::tp, MeshAxis::ep, MeshAxis::cp, MeshAxis::pp}) {
    if (axis == inner) return rank % extent(inner);
    rank /= extent(inner);
  }
  return rank;
}

void DeviceMesh::check(int ranks) const {
  int64_t product = 1;
  for (const int n : {dp, pp, cp, tp, ep}) product = n < 1 || product > ranks ? -1 : product * n;
  if (product != ranks)
    refuse(
        "mesh",
        fmt::format("dp {} x pp {} x cp {} x tp {} x ep {} does not give the {} ranks that were "
                    "started: every axis must be at least 1 and their product the number of ranks",
                    dp, pp, cp, tp, ep, ranks));
}

bool ShardSpec::replicated() const noexcept {
  return std::all_of(axis_of_dimension.begin(), axis_of_dimension.end(),
                     [](int a) { return a == whole; });
}

void ShardSpec::check(std::span<const int64_t> shape, const DeviceMesh& mesh) const {
  if (axis_of_dimension.empty()) return;
  if (axis_of_dimension.size() != shape.size())
    refuse("shard_spec",
           fmt::format("{} entries for a parameter of {} dimensions: one for each, or none",
                       axis_of_dimension.size(), shape.size()));
  unsigned used = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int axis = axis_of_dimension[i];
    if (axis == whole) continue;
    if (axis < 0 || axis > static_cast<int>(MeshAxis::ep))
      refuse("shard_spec",
             fmt::format("dimension {} names axis {}: 0 to 4 or -1 is needed", i, axis));
    if (used & 1u << axis)
      refuse("shard_spec",
             fmt::format("axis {} cuts two dimensions: it can cut one", kMeshAxisNames[axis]));
    used |= 1u << axis;
    const int parts = mesh.extent(static_cast<MeshAxis>(axis));
    if (shape[i] % parts != 0)
      refuse("shard_spec",
             fmt::format("dimension {} of size {} cannot be cut into {} equal parts ({})", i,
                         shape[i], parts, kMeshAxisNames[axis]));
  }
}

std::vector<int64_t> ShardSpec::local_shape(std::span<const int64_t> shape,
                                            const DeviceMesh& mesh) const {
  check(shape, mesh);
  std::vector<int64_t> local(shape.begin(), shape.end());
  for (size_t i = 0; i < axis_of_dimension.size(); ++i)
    if (axis_of_dimension[i] != whole)
      local[i] /= mesh.extent(static_cast<MeshAxis>(axis_of_dimension[i]));
  return local;
}

}  // namespace saturate::parallel
