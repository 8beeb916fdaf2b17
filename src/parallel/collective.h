// SPDX-License-Identifier: Apache-2.0
// A collective as data: what its ranks must agree on. Transports run it, and lists of them are
// checked against each other before anything runs.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace saturate::parallel {

// Ranks that communicate among themselves, made by Communicator::make_group. Positions in `ranks`
// are the numbers that counts and roots go by.
struct Group {
  int32_t id = 0;  // of this communicator; 0 is the group of all ranks
  std::vector<int> ranks;
  std::string axes = {};  // of the mesh, for messages: "dp", "tp-cp"; empty: not known
  int size() const noexcept { return static_cast<int>(ranks.size()); }
  int position(int rank) const noexcept;  // -1 when it is no member
};

//                 input (elements)    output (elements)
//   all_reduce    count, or in place  count                sum over the ranks; in place without input
//   reduce_scatter count * size       count                part `position` of the sum
//   all_gather    count               count * size         parts in the order of positions
//   broadcast     in place            count                what the rank at position root has
//   all_to_all    sum(send_counts)    sum(receive_counts)  part j of the input goes to position j,
//                                                          part j of the output comes from it
//   send_receive  as all_to_all, but only the ranks that exchange something take part; all its
//                 transfers are under way together, so that a ring cannot lock up
// Parts lie one after another in the order of positions. Input and output do not overlap, but that
// the single part of reduce_scatter (its output) and of all_gather (its input) may be where the part
// of the own position lies in the whole: then it works in place.
enum class CollectiveKind : uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send_receive
};
const char* name_of(CollectiveKind kind) noexcept;

struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  Group group;
  DType dtype = DType::f32;
  int64_t count = 0;
  int root = 0;
  std::vector<int64_t> send_counts = {}, receive_counts = {};  // by position
  bool moves_only() const noexcept {
    return kind != CollectiveKind::all_reduce && kind != CollectiveKind::reduce_scatter;
  }
  // Elements of the largest buffer: 0 means that there is nothing to do, on any rank of the group
  // (all_to_all takes part all the same, as its counts differ from rank to rank).
  int64_t elements() const noexcept;
};

// "all_reduce of 100 f32 over ranks 0, 2", "send_receive of f32 (5 to rank 1) over ranks 0, 1".
std::string describe(const Collective& c);

// Whether rank a's and rank b's collectives, met in one group, are one: equal kind, type, count and
// root; what one sends the other receives.
bool matches(const Collective& a, int rank_a, const Collective& b, int rank_b);

// How the lists of all ranks, each in the order of starting, fit together: "" when every rank of a
// group starts the same sequence, every send meets its receive and none waits for ever; else the
// first entries that differ, on both ranks, or what each rank waits for. Collectives are taken to
// run one at a time on a rank, as on the communication stream of NCCL.
std::string mismatch_of(std::span<const std::vector<Collective>> lists);

}  // namespace saturate::parallel
