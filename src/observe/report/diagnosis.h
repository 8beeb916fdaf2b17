// SPDX-License-Identifier: Apache-2.0
// A capture read, analysed and judged: what every report shows.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "observe/analyse/analyser.h"
#include "observe/analyse/fixes.h"
#include "observe/ranks/rank_analysis.h"
#include "observe/read/open_capture.h"
#include "observe/system/counters.h"

namespace saturate::observe {

struct Verdict {
  std::string id;                // "launch_bound", ...: of JSON, never changes
  std::string headline;          // "launch-bound"
  std::string confidence;        // high, medium, low
  std::string why, next;         // a sentence each
  double cause_ns = 0;           // of a mean step that the attribution puts down to the cause
  std::optional<HostLine> line;  // of the program, where one holds most of it
};

struct Diagnosis {
  std::string file;
  Analysis analysis;
  FixReport fixes;
  Verdict verdict;
  std::optional<RankReport>
      ranks;          // then all else is of one rank: the one that holds the others up
  size_t shown = 0;   // its place
  Counters counters;  // empty where nothing was sampled from outside
  const DeviceAnalysis& device() const { return analysis.devices.front(); }
  // The median step without the recording's cost; 0 where steps are not known.
  double unrecorded_step_ns() const {
    return analysis.steps.found ? analysis.steps.median_ns / analysis.slowdown : 0;
  }
};

// The cause whose removal brings most; "gpu_bound" when nothing outside the kernels brings
// kWorth. Without numbers the largest idle leaf decides, with low confidence.
Verdict judge(const Analysis& analysis, const FixReport& fixes);

// Reads and judges a file: Kineto JSON (plain or gzip). Errors    as the readers' and Analyser's.
Diagnosis diagnose(const std::string& path, AnalyseOptions options = {});
// The same of a capture that is open; `name` is for the report.
Diagnosis diagnose(Capture& capture, const std::string& name, AnalyseOptions options = {},
                   Counters counters = {});

// The same of several ranks, whose times are moved to one clock.
Diagnosis diagnose_ranks(std::vector<RankTrace>& ranks, const std::string& name,
                         AnalyseOptions options = {}, Counters counters = {});

// What held the clocks down, of the GPU where it cost most.
ClockHold clock_hold(const Counters& counters);

}  // namespace saturate::observe
