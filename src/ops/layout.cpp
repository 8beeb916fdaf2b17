// SPDX-License-Identifier: Apache-2.0
#include "ops/layout.h"

#include <numeric>

#include "base/error.h"

namespace saturate {
namespace {

using Axis = parallel::MeshAxis;

const std::vector<Axis> kSets[] = {{Axis::tp},
                                   {Axis::cp},
                                   {Axis::dp},
                                   {Axis::pp},
                                   {Axis::ep},
                                   {Axis::edp},
                                   {Axis::tp, Axis::cp},
                                   {Axis::cp, Axis::dp},
                                   {Axis::tp, Axis::cp, Axis::dp},
                                   {Axis::tp, Axis::cp, Axis::dp, Axis::pp}};

}  // namespace

Layout::Layout(parallel::Communicator& ranks, const parallel::MeshExtents& extents,
               std::string_view order)
    : communicator_(&ranks), mesh_(ranks.size(), extents, order), rank_(ranks.rank()) {
  for (const std::vector<Axis>& axes : kSets) {
    const std::vector<int> key = partition(axes);
    if (groups_.contains(key)) {
      of_axes_.emplace(bits(axes), groups_[key]);
      continue;
    }
    std::string names;
    for (const Axis axis : axes) names += (names.empty() ? "" : "-") + std::string(name_of(axis));
    std::vector<int> members = mesh_.group(axes, rank_);
    if (std::ssize(members) == ranks.size()) {
      groups_[key] = ranks.world();
    } else if (members.size() > 1) {  // the same on all ranks: parts are of one size
      groups_[key] = ranks.make_group(std::move(members));
    } else {
      groups_[key] = {.id = -1, .ranks = std::move(members)};
    }
    groups_[key].axes = std::move(names);
    of_axes_.emplace(bits(axes), groups_[key]);
  }
}

// Axes of one rank change no group.
unsigned Layout::bits(std::span<const Axis> axes) const {
  unsigned set = 0;
  for (const Axis a : axes)
    if (extent(a) > 1) set |= 1u << static_cast<unsigned>(a);
  return set;
}

std::vector<int> Layout::partition(std::span<const Axis> axes) const {
  std::vector<int> lowest(static_cast<size_t>(mesh_.size()));
  for (int r = 0; r < mesh_.size(); ++r) lowest[static_cast<size_t>(r)] = mesh_.lowest(axes, r);
  return lowest;
}

const Layout& Layout::one_rank() {
  static const Layout kOne;
  return kOne;
}

const parallel::Group& Layout::group(std::span<const Axis> axes) const {
  static const parallel::Group kAlone{.id = -1, .ranks = {0}};
  if (communicator_ == nullptr) return kAlone;
  if (const auto known = of_axes_.find(bits(axes)); known != of_axes_.end()) return known->second;
  const auto found = groups_.find(partition(axes));
  SAT_ASSERT(found != groups_.end());
  return found->second;
}

}  // namespace saturate
