// SPDX-License-Identifier: Apache-2.0
// Captures of several ranks of one program, each as a trace of its own.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "observe/trace/trace.h"

namespace saturate::observe {

struct RankTrace {
  int64_t rank = 0;
  std::string name;    // the file and, where it holds several, the process
  uint32_t clock = 0;  // ranks of the same number have one clock
  Trace trace;         // sorted; of this rank's process only
};

// Opens the captures of ranks: files of any format that is known, and folders, of which the
// captures in them and in their folders count. Files of saturate are joined first, so that what one
// of them did not record is cut out of all. A file of several processes gives a rank for each that
// used a device. Ranks are numbered as the files say; where they do not, by the number behind
// "rank" in the name, else in the order given. By rank, with the processes of rank i renumbered to i.
// Errors     Error{invalid_argument} for a folder without captures, for two captures of one rank,
// and for fewer than two ranks; whatever the readers throw.
std::vector<RankTrace> open_ranks(const std::vector<std::string>& paths);

// The ranks of a sorted trace: its processes that ran kernels of communication, or, where the rank is
// known, graphs, which may hold some. None where there are fewer than two.
std::vector<RankTrace> split_ranks(const Trace& trace, const std::string& name);

}  // namespace saturate::observe
