// SPDX-License-Identifier: Apache-2.0
#include "parallel/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace saturate::parallel {
namespace {

constexpr std::array kNames = {"tp", "cp", "dp", "pp", "ep", "edp"};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "mesh", what);
}

}  // namespace

const char* name_of(MeshAxis axis) noexcept { return kNames[static_cast<size_t>(axis)]; }

Mesh::Mesh(int ranks, const MeshExtents& e, std::string_view order)
    : ranks_(ranks), dp_shard_(e.dp_shard > 0 ? e.dp_shard : e.dp), extent_{e.tp, e.cp, e.dp,
                                                                            e.pp, e.ep, 1} {
  int64_t product = 1;
  for (const int n : {e.tp, e.cp, e.dp, e.pp})
    product = n < 1 || product > ranks ? -1 : product * n;
  if (product != ranks)
    refuse(
        fmt::format("tp {} x cp {} x dp {} x pp {} does not give the {} ranks that were started: "
                    "every axis must be at least 1 and their product the number of ranks",
                    e.tp, e.cp, e.dp, e.pp, ranks));
  const int stage = ranks / e.pp;
  if (e.ep < 1 || stage % e.ep != 0)
    refuse(
        fmt::format("ep {} does not divide the {} ranks of a pipeline stage (tp x cp x dp): choose "
                    "one of its divisors",
                    e.ep, stage));
  extent_[static_cast<size_t>(MeshAxis::edp)] = stage / e.ep;
  if (e.dp % dp_shard_ != 0)
    refuse(fmt::format("dp_shard {} does not divide dp {}: choose one of its divisors", dp_shard_,
                       e.dp));

  int found = 0, stride = 1;
  for (std::string_view rest = order; found < 4;) {
    const std::string_view name = rest.substr(0, rest.find('-'));
    const auto* const at = std::find(kNames.begin(), kNames.begin() + 4, name);
    const auto axis = static_cast<MeshAxis>(at - kNames.begin());
    if (at == kNames.begin() + 4 || std::find(order_, order_ + found, axis) != order_ + found)
      break;
    order_[found++] = axis;
    stride_[static_cast<size_t>(axis)] = stride;
    stride *= extent(axis);
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (found == 4 && !rest.empty()) found = 5;
  }
  if (found != 4)
    refuse(fmt::format(
        "the order '{}' does not name each of tp, cp, dp and pp once: write it innermost first, "
        "such as {}",
        order, kOrder));
}

int Mesh::in_stage(int rank) const noexcept {
  int number = 0, stride = 1;
  for (const MeshAxis axis : order_) {
    if (axis == MeshAxis::pp) continue;
    number += stride * coordinate(axis, rank);
    stride *= extent(axis);
  }
  return number;
}

int Mesh::coordinate(MeshAxis axis, int rank) const noexcept {
  if (axis == MeshAxis::ep) return in_stage(rank) % extent(MeshAxis::ep);
  if (axis == MeshAxis::edp) return in_stage(rank) / extent(MeshAxis::ep);
  return rank / stride_[static_cast<size_t>(axis)] % extent(axis);
}

int Mesh::lowest(std::span<const MeshAxis> axes, int rank) const {
  int ep = coordinate(MeshAxis::ep, rank), edp = coordinate(MeshAxis::edp, rank);
  bool experts = false;
  for (const MeshAxis a : axes) {
    if (a == MeshAxis::ep) ep = 0;
    if (a == MeshAxis::edp) edp = 0;
    experts = experts || a == MeshAxis::ep || a == MeshAxis::edp;
    if (a != MeshAxis::ep && a != MeshAxis::edp)
      rank -= coordinate(a, rank) * stride_[static_cast<size_t>(a)];
  }
  if (!experts) return rank;
  int number = edp * extent(MeshAxis::ep) + ep;
  rank = coordinate(MeshAxis::pp, rank) * stride_[static_cast<size_t>(MeshAxis::pp)];
  for (const MeshAxis axis : order_) {
    if (axis == MeshAxis::pp) continue;
    rank += number % extent(axis) * stride_[static_cast<size_t>(axis)];
    number /= extent(axis);
  }
  return rank;
}

std::vector<int> Mesh::group(std::span<const MeshAxis> axes, int rank) const {
  const auto has = [&](MeshAxis a) { return std::find(axes.begin(), axes.end(), a) != axes.end(); };
  const bool experts = has(MeshAxis::ep) || has(MeshAxis::edp);
  if (experts && (has(MeshAxis::tp) || has(MeshAxis::cp) || has(MeshAxis::dp)))
    refuse(
        "a group over ep or edp cannot also go over tp, cp or dp, which number the same ranks in "
        "another way: make two groups");
  constexpr MeshAxis kDense[] = {MeshAxis::tp, MeshAxis::cp, MeshAxis::dp, MeshAxis::pp};
  constexpr MeshAxis kExperts[] = {MeshAxis::ep, MeshAxis::edp, MeshAxis::pp};
  const auto view =
      experts ? std::span<const MeshAxis>(kExperts) : std::span<const MeshAxis>(kDense);
  std::vector<int> members;
  for (int other = 0; other < ranks_; ++other) {
    const bool same = std::all_of(view.begin(), view.end(), [&](MeshAxis a) {
      return has(a) || coordinate(a, other) == coordinate(a, rank);
    });
    if (same) members.push_back(other);
  }
  return members;
}

}  // namespace saturate::parallel
