// SPDX-License-Identifier: Apache-2.0
// Collectives found again in the captures of all ranks, which are put on one clock by them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/ranks/rank_traces.h"

namespace saturate::observe {

// How a rank's clock was set to that of the first.
struct ClockFit {
  bool estimated = false;     // by collectives; else the source says that the clocks are one
  double offset_ns = 0;       // of the rank's clock, at its first collective
  double drift = 0;           // its growth, as a share of the time
  double uncertainty_ns = 0;  // half of the collectives' ends lie within it of each other
  int64_t collectives = 0;    // that it is known by
};

// One rank's part of a collective, or of a launch of a graph where graphs were recorded whole.
struct CollectivePart {
  uint32_t rank = 0;  // its place among the traces
  uint32_t op = 0;    // of its trace
  int64_t start_ns = 0, end_ns = 0;
  int64_t before_ns = INT64_MIN;  // the end of its part before on this communicator
};

struct Collective {
  uint32_t communicator = 0;
  std::vector<CollectivePart> parts;  // at least two, by rank
};

struct Communicator {
  std::string name;             // as the source has it, or by the stream
  bool named = false;           // by the source
  std::vector<uint32_t> ranks;  // places among the traces
  std::string what;             // its collectives' kinds: "allreduce, allgather"
  int64_t bytes = 0;            // of one rank; 0 where the source does not say
};

struct MatchedRanks {
  std::vector<ClockFit> clocks;  // by rank
  std::vector<Communicator> communicators;
  std::vector<Collective> collectives;  // of a communicator in order of time
  int64_t parts = 0, unmatched = 0;     // operations of communication, and those without a partner
  bool whole_graphs =
      false;  // no rank has kernels of communication: launches of graphs stand for them
  std::vector<std::string> notes;
};

// Moves the times of all traces to the clock of the first, and finds which operations are the parts
// of one collective.
//
// Clocks: the end of an all-reduce, all-gather, reduce-scatter or all-to-all is simultaneous on all
// ranks within its latency, whoever came late; so the difference of two clocks is where the
// differences of ends of operations of one kind gather (the densest 100 us, the median in it), and its
// growth that from the first 512 of them to the last. Ranks that share no communicator are set by
// one that shares one with both. Where nothing gathers a rank keeps its own clock, with a note.
//
// Collectives: operations of one communicator, where the source names it, else of streams whose
// collectives end together; of one kind, that overlap in time and end within 200 us, or a tenth of
// the shorter, of each other (a broadcast's, or a send's, need only overlap). Parts that were not
// recorded are passed over. Deterministic. Cost: O(operations), and for the clocks 512 operations
// against 1,500 a pair of ranks.
MatchedRanks match_collectives(std::vector<RankTrace>& ranks);

}  // namespace saturate::observe
