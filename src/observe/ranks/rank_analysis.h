// SPDX-License-Identifier: Apache-2.0
// Who waits for whom: collectives of all ranks taken apart into waiting and transfer, and what the
// rank that comes last did meanwhile that the others did not.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/analyse/analysis.h"
#include "observe/analyse/leaf.h"
#include "observe/ranks/collectives.h"

namespace saturate::observe {

// Leaves that one remedy is for.
enum class LateCause : uint8_t {
  host,           // its host issued the work later: its own code, a lock, no core, waits
  input,          // it waited for data, or copied it
  kernels,        // its kernels took longer
  communication,  // it came out of another communicator later
  unknown,
};
struct LateCauseInfo {
  const char *id, *title;  // of JSON; "its host was later"
};
const LateCauseInfo& late_cause_info(LateCause cause);
LateCause late_cause_of(Leaf leaf);

// Times of one rank in the window; nanoseconds.
struct RankUse {
  int64_t rank = 0;
  std::string name;
  uint32_t device = 0;
  DeviceInfo info;
  int64_t compute_ns = 0;             // kernels but those of communication, at least one running
  int64_t communication_ns = 0;       // at least one collective under way
  int64_t waiting_ns = 0;             // of these, before all had come and no other transfer went on
  int64_t exposed_waiting_ns = 0;     // while nothing was computed
  int64_t exposed_transfer_ns = 0;    // likewise, of the rest
  int64_t idle_ns = 0;                // neither computes nor communicates
  int64_t collectives = 0, last = 0;  // that it took part in; that it came last at, by over 10 us
  double caused_ns = 0;               // what the other ranks waited for it, on average over them
  std::vector<double> caused_by;      // of it, by leaf: its own time less the others' mean
};

struct CommunicatorUse {
  Communicator communicator;
  int64_t collectives = 0;
  // Sums over collectives of the mean over ranks.
  double transfer_ns = 0, waiting_ns = 0, exposed_transfer_ns = 0, exposed_waiting_ns = 0;
  int64_t last_rank = -1;  // the rank that most of the waiting is for
};

struct RankReport {
  std::vector<RankUse> ranks;
  std::vector<CommunicatorUse> communicators;  // most exposed first
  std::vector<ClockFit> clocks;
  int64_t from_ns = 0, to_ns = 0;
  double steps = 0;  // in the window; 0: not known, and times stand for the whole window
  bool whole_graphs = false;
  int64_t parts = 0, unmatched = 0;
  std::vector<std::string> notes;

  // What removing waits, or hiding transfers, saves at most of the window.
  double saved_straggler_ns = 0;  // the straggler as early as the earliest, at each collective
  double saved_median_ns = 0;     // each rank as early as the median, an estimate
  double saved_all_ns = 0;        // all as early as the earliest
  double saved_hidden_ns = 0;     // no transfer is exposed
  double imbalance = 0;           // longest compute time over the mean, less one

  int64_t straggler = -1;      // place in `ranks`, or none
  double straggler_share = 0;  // of all waiting
  LateCause cause = LateCause::unknown;
  Leaf leaf = Leaf::unknown;
  double cause_ns = 0;  // of caused_ns, by that cause
  double leaf_ns = 0;   // and by that leaf
  std::string evidence, action;

  double wall_ns() const { return static_cast<double>(to_ns - from_ns); }
  // Fewer steps hold what comes before and after the loop as well.
  bool bounds() const { return steps >= 3; }
  // Gains of throughput by those savings.
  double gain(double saved_ns) const { return wall_ns() / std::max(1.0, wall_ns() - saved_ns); }
  // Of a step, or of the window.
  double per_step(double ns) const { return steps > 0 ? ns / steps : ns; }
};

// `ranks` and `matched` as match_collectives leaves them; `analyses` one of each rank, by place. The
// window is where all are analysed. Exact up to the clocks: a collective's waiting on a rank is the
// time from its start to the last rank's, and what the straggler's lateness is put down to sums to
// what the others waited for it. The four savings are the collectives' own, summed as if each was on
// the critical path, and so ceilings, but for the median's. Cost: O(operations).
RankReport analyse_ranks(const std::vector<RankTrace>& ranks, const MatchedRanks& matched,
                         const std::vector<Analysis>& analyses);

}  // namespace saturate::observe
