// SPDX-License-Identifier: Apache-2.0
#include "ops/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

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

// What gradients are summed over (ShardSpec::reduce_axes).
const std::vector<Axis> kShared[] = {
    {Axis::dp}, {Axis::edp}, {Axis::cp, Axis::dp}, {Axis::tp, Axis::cp, Axis::dp}};

}  // namespace

Layout::Layout(parallel::Communicator& ranks, const parallel::MeshExtents& extents,
               const TransferOptions& transfers)
    : communicator_(&ranks),
      mesh_(ranks.size(), extents),
      rank_(ranks.rank()),
      transfers_(transfers) {
  for (const std::vector<Axis>& axes : kSets) {
    std::string names;
    for (const Axis axis : axes) {
      if (!names.empty()) names += '-';
      names += name_of(axis);
    }
    of_axes_.emplace(bits(axes), make(partition(axes), std::move(names)));
  }
  for (const std::vector<Axis>& axes : kShared) split(axes);
}

// Collective: the group of this rank in a partition, made when it is new.
parallel::Group Layout::make(const std::vector<int>& key, std::string names) {
  if (const auto known = groups_.find(key); known != groups_.end()) return known->second;
  std::vector<int> members;
  for (int r = 0; r < mesh_.size(); ++r)
    if (key[static_cast<size_t>(r)] == key[static_cast<size_t>(rank_)]) members.push_back(r);
  parallel::Group group{.id = -1, .ranks = members};
  // A pipeline over all ranks has a group of its own too: messages in a group are kept to few
  // multiprocessors, which those of the world are not.
  const int stages = mesh_.extent(Axis::pp);
  if (std::ssize(members) == mesh_.size() && (stages == 1 || stages < mesh_.size())) {
    group = communicator_->world();
  } else if (members.size() > 1) {  // the same on all ranks: parts are of one size
    group = communicator_->make_group(std::move(members));
  }
  group.axes = std::move(names);
  return groups_[key] = group;
}

// Ranks of one group are numbered inside each copy of the state; those of one number are replicas.
void Layout::split(std::span<const Axis> axes) {
  const parallel::Group& all = group(axes);
  if (mesh_.copies() == 1) {
    sharers_.emplace(bits(axes), Sharers{all, {.id = -1, .ranks = {rank_}}});
    return;
  }
  const std::vector<int> whole = partition(axes);
  std::map<std::pair<int, int>, std::vector<int>> members;  // by group and copy
  std::vector<int> sharers, replicas;
  for (int r = 0; r < mesh_.size(); ++r) {
    std::vector<int>& share = members[{whole[static_cast<size_t>(r)], mesh_.copy_of(r)}];
    share.push_back(r);
    sharers.push_back(share.front());
  }
  for (int r = 0; r < mesh_.size(); ++r) {
    const int lowest = whole[static_cast<size_t>(r)];
    const std::vector<int>& share = members[{lowest, mesh_.copy_of(r)}];
    const auto number = static_cast<size_t>(std::ranges::find(share, r) - share.begin());
    const std::vector<int>& first = members[{lowest, mesh_.copy_of(lowest)}];
    if (share.size() != first.size())
      throw Error(Errc::invalid_argument, "layout",
                  fmt::format("{} ranks share a copy of what {} hold alike and {} another: choose "
                              "a dp_shard for which ep divides tp * cp * dp_shard",
                              first.size(), all.axes, share.size()));
    replicas.push_back(first[number]);
  }
  const parallel::Group shard = make(sharers, all.axes + "_shard");
  sharers_.emplace(bits(axes), Sharers{shard, make(replicas, all.axes + "_replicate")});
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

const Layout::Sharers& Layout::sharers(std::span<const Axis> axes) const {
  static const Sharers kAlone{{.id = -1, .ranks = {0}}, {.id = -1, .ranks = {0}}};
  if (communicator_ == nullptr) return kAlone;
  const auto found = sharers_.find(bits(axes));
  SAT_ASSERT(found != sharers_.end());
  return found->second;
}

}  // namespace saturate
