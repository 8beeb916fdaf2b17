// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "observe/ranks/rank_traces.h"
#include "observe/trace/trace.h"

namespace saturate::observe {

// The capture as a Perfetto trace (protobuf) for ui.perfetto.dev: for each device a track that says
// to which leaf each stretch of its time went, one for each stream, and one for each thread's calls
// and ranges. Times are counted from the first record. What overlaps without nesting goes to tracks
// side by side, which Chrome's JSON cannot show. `trace` must be sorted. Memory: the result, about
// 30 bytes a record.
std::string render_perfetto(const Trace& trace);
// The same of ranks on one clock, each with groups of its own, by rank.
std::string render_perfetto(const std::vector<RankTrace>& ranks);

}  // namespace saturate::observe
