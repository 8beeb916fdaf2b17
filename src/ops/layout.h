// SPDX-License-Identifier: Apache-2.0
// How the ranks of a run share the computation of a model, seen from one of them: where it stands on
// the mesh, and the groups it communicates in. Code that asks it is the same text on one rank, whose
// layout has groups of one and so records no collective.
#pragma once
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "ops/collectives.h"
#include "parallel/communicator.h"
#include "parallel/mesh.h"

namespace saturate {

// What context-parallel ranks exchange for attention: rows for heads (all-to-all), or the keys and
// values of all rows (all-gather); automatic: heads where the ranks divide them.
enum class ContextExchange : uint8_t { automatic, heads, keys };

// How the transfers of a layout are made.
struct TransferOptions {
  ContextExchange context =
      ContextExchange::automatic;  // as asked for: a model decides (row_chunks)
  int64_t tp_overlap = 0;  // pieces of gather_linear() and linear_scatter() (ops/linear_ranks.h)
};

class Layout {
 public:
  using Axis = parallel::MeshAxis;

  Layout() = default;  // one rank
  // Collective over all ranks: makes the groups of every axis and of every set of axes that
  // gradients are summed over. `ranks` outlives it. Errors: those of Mesh; collective.
  Layout(parallel::Communicator& ranks, const parallel::MeshExtents& extents,
         const TransferOptions& transfers = {});

  const parallel::Mesh& mesh() const noexcept { return mesh_; }
  int rank() const noexcept { return rank_; }
  int extent(Axis axis) const noexcept { return mesh_.extent(axis); }
  int coordinate(Axis axis) const noexcept { return mesh_.coordinate(axis, rank_); }

  // That of a model which is whole on its rank.
  static const Layout& one_rank();

  // The ranks that differ from this one on `axes` at most, in the order of Mesh::group: one axis
  // each, {tp, cp}, {cp, dp}, {tp, cp, dp} or all four. Sets that name the same ranks share a group. A
  // group of one has nothing behind it: start no collective in it.
  const parallel::Group& group(std::span<const Axis> axes) const;
  const parallel::Group& group(std::initializer_list<Axis> axes) const {
    return group(std::span(axes.begin(), axes.size()));
  }
  // Of group(axes), dp or edp among them: the ranks that share one copy of what all of it hold alike,
  // and those that have this rank's share of the other copies (MeshExtents::dp_shard). Where there
  // is one copy these are the group itself and this rank alone.
  struct Sharers {
    parallel::Group sharers, replicas;
  };
  const Sharers& sharers(std::span<const Axis> axes) const;

  // The same for recorded operations.
  ops::GroupOfRanks ranks(std::initializer_list<Axis> axes, int32_t lane = 0) const {
    return {.communicator = communicator_, .group = group(axes), .lane = lane};
  }

  const TransferOptions& transfers() const noexcept { return transfers_; }

  // What groups belong to; null on one rank.
  parallel::Communicator* communicator() const noexcept { return communicator_; }

  // Ranks that share the rows of one micro-batch, each with an equal part of consecutive rows where
  // rows are cut (sequence parallel under tp, context parallel); neighbours in tp are neighbours.
  int row_parts() const noexcept { return extent(Axis::tp) * extent(Axis::cp); }
  int row_part() const noexcept {
    return coordinate(Axis::cp) * extent(Axis::tp) + coordinate(Axis::tp);
  }

 private:
  // Which ranks a set of axes joins: for each rank the lowest of its group.
  std::vector<int> partition(std::span<const Axis> axes) const;
  unsigned bits(std::span<const Axis> axes) const;
  parallel::Group make(const std::vector<int>& key, std::string names);
  void split(std::span<const Axis> axes);

  parallel::Communicator* communicator_ = nullptr;
  parallel::Mesh mesh_{1, {}};
  int rank_ = 0;
  TransferOptions transfers_;
  std::map<std::vector<int>, parallel::Group> groups_;  // by partition
  std::map<unsigned, parallel::Group> of_axes_;         // by bits of the axes that are cut
  std::map<unsigned, Sharers> sharers_;                 // the same
};

}  // namespace saturate
