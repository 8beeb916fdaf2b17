// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "parallel/pipeline/schedule.h"

namespace saturate::parallel::pipeline {
namespace {

using Kind = ActionKind;
using List = std::vector<Action>;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "pipeline", what);
}

List gpipe(int32_t rank, int32_t micro_batches) {
  List list;
  for (int32_t m = 0; m < micro_batches; ++m) list.push_back({Kind::forward, rank, m});
  for (int32_t m = 0; m < micro_batches; ++m) list.push_back({Kind::backward, rank, m});
  return list;
}

// Number i of a rank's forwards (or backwards, with the chunks from the last on) goes chunk by chunk
// through groups of as many micro-batches as there are ranks. One chunk a rank is 1F1B.
List one_f_one_b(int32_t rank, int32_t ranks, int32_t chunks_per_rank, int32_t micro_batches) {
  const int32_t total = micro_batches * chunks_per_rank;
  const auto number = [&](Kind kind, int32_t i) -> Action {
    const int32_t in_group = i % (ranks * chunks_per_rank) / ranks;
    const int32_t local = kind == Kind::forward ? in_group : chunks_per_rank - 1 - in_group;
    return {kind, local * ranks + rank, i / (ranks * chunks_per_rank) * ranks + i % ranks};
  };
  const auto plain = [&](Kind kind, int32_t i) -> Action { return {kind, rank, i}; };
  const int32_t ahead = chunks_per_rank == 1
                            ? ranks - 1 - rank
                            : 2 * (ranks - 1 - rank) + (chunks_per_rank - 1) * ranks;
  List list;
  for (int32_t i = 0; i < total + ahead; ++i) {
    const int32_t back = i - ahead;
    const auto add = [&](Kind kind, int32_t n) {
      list.push_back(chunks_per_rank == 1 ? plain(kind, n) : number(kind, n));
    };
    if (i < total) add(Kind::forward, i);
    if (back >= 0 && back < total) add(Kind::backward, back);
  }
  return list;
}

// ZB-H1: weight gradients stay `rank` behind input gradients, so that every rank holds as many
// micro-batches as the first one does in 1F1B, and the last ones fill what was the bubble.
List zero_bubble(int32_t rank, int32_t ranks, int32_t micro_batches) {
  const int32_t ahead = ranks - 1 - rank;
  List list;
  for (int32_t i = 0; i < micro_batches + ranks - 1; ++i) {
    const int32_t input = i - ahead, weight = input - rank;
    if (i < micro_batches) list.push_back({Kind::forward, rank, i});
    if (input >= 0 && input < micro_batches) list.push_back({Kind::input_gradient, rank, input});
    if (weight >= 0 && weight < micro_batches)
      list.push_back({Kind::weight_gradient, rank, weight});
  }
  return list;
}

Schedule by_rank(const ScheduleRequest& r, const auto& list_of) {
  Schedule s{.micro_batches = r.micro_batches,
             .rank_of = place(Placement::looped, r.ranks, r.chunks_per_rank),
             .actions = {}};
  for (int32_t rank = 0; rank < r.ranks; ++rank) s.actions.push_back(list_of(rank));
  return s;
}

}  // namespace

std::vector<int32_t> place(Placement placement, int32_t ranks, int32_t chunks_per_rank) {
  std::vector<int32_t> rank_of;
  for (int32_t k = 0; k < chunks_per_rank; ++k) {
    for (int32_t r = 0; r < ranks; ++r)
      rank_of.push_back(placement == Placement::v_shape && k % 2 == 1 ? ranks - 1 - r : r);
  }
  return rank_of;
}

Schedule make_schedule(const ScheduleRequest& r) {
  const int32_t v = r.chunks_per_rank, a = r.micro_batches;
  if (r.ranks < 1 || v < 1 || a < 1)
    refuse(fmt::format("{} ranks, {} chunks a rank, {} micro-batches: each must be at least 1",
                       r.ranks, v, a));
  const ActionTimes times = r.times.forward.empty() ? unit_times(r.ranks * v) : r.times;
  if (std::ssize(times.forward) != r.ranks * v)
    refuse(fmt::format("times of {} chunks are given for {} ranks with {} chunks each",
                       times.forward.size(), r.ranks, v));
  if (r.ranks * v == 1) return by_rank(r, [&](int32_t rank) { return one_f_one_b(rank, 1, 1, a); });
  const auto in_v = [&](bool split) {
    if (v != 2)
      refuse(
          fmt::format("{} chunks a rank: this schedule has 1, or 2 that lie in a V; for more "
                      "take parallel.schedule = \"interleaved\"",
                      v));
    return list_schedule(place(Placement::v_shape, r.ranks, 2), a, times, split, 2 * r.ranks);
  };
  switch (r.kind) {
    case ScheduleKind::gpipe:
      if (v != 1)
        refuse(fmt::format("{} chunks a rank: gpipe has one; set parallel.chunks = 1", v));
      return by_rank(r, [&](int32_t rank) { return gpipe(rank, a); });
    case ScheduleKind::one_f_one_b:
      if (v != 1) return in_v(false);
      return by_rank(r, [&](int32_t rank) { return one_f_one_b(rank, r.ranks, 1, a); });
    case ScheduleKind::interleaved:
      if (v == 1 || a % r.ranks != 0)
        refuse(
            fmt::format("{} micro-batches in {} chunks a rank on {} stages: interleaved needs two "
                        "chunks or more, and micro-batches that are a multiple of the stages; set "
                        "parallel.chunks and batch.accumulate so, or take \"1f1b\"",
                        a, v, r.ranks));
      return by_rank(r, [&](int32_t rank) { return one_f_one_b(rank, r.ranks, v, a); });
    case ScheduleKind::zero_bubble:
      break;
  }
  if (v != 1) return in_v(true);
  Schedule fixed = by_rank(r, [&](int32_t rank) { return zero_bubble(rank, r.ranks, a); });
  if (r.times.forward.empty()) return fixed;
  Schedule list = list_schedule(place(Placement::looped, r.ranks, 1), a, times, true, r.ranks);
  return simulate(list, times).makespan < simulate(fixed, times).makespan ? list : fixed;
}

}  // namespace saturate::parallel::pipeline
