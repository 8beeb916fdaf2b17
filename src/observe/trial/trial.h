// SPDX-License-Identifier: Apache-2.0
// Runs of one command, unchanged and with remedies, put side by side: what was promised and what was
// gained.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "observe/trial/remedies.h"

namespace saturate::observe {

enum class TrialOutcome : uint8_t { ended, failed, timed_out, interrupted, no_effect, left_out };

struct TrialRun {
  TrialOutcome outcome = TrialOutcome::ended;
  std::string note;  // why it did not end well, or was left out
  std::string last_lines;
  int exit_code = 0;
  double wall_s = 0;
  double step_ns = 0;       // median, without what recording costs; 0: no steps were found
  double mean_step_ns = 0;  // the same
  double launches_a_step = 0;
};

struct TrialGain {
  double factor = 0;     // 0: not known
  bool by_step = false;  // else by the whole run, its start included
  bool by_mean = false;  // of a step: where what it waits for lies in few of those that were found
};

struct TrialRow {
  Remedy remedy;
  TrialRun run;
  TrialGain gain;
};

struct Trial {
  std::string command;
  std::vector<TrialRun> unchanged;  // before and after the others
  double watched_launches = 0;      // a step of the first run, whose report promises
  std::vector<TrialRow> rows;       // the last may be of all that gained
  std::string why_not;              // nothing was tried; else empty
  bool interrupted = false;
};

constexpr double kGained = 1.03;

// By which steps of two runs are told to be the same; 0 without steps.
double launches_a_step(const Diagnosis& diagnosis);

// How many times as fast the steps are; those of the unchanged runs that ended are averaged. By the
// whole run where a run has no steps, or its steps launch over a quarter more or less than those of
// the others or than `watched_launches` (0: not known), the steps of the report that promises.
TrialGain gain_of(const std::vector<TrialRun>& unchanged, const TrialRun& run,
                  double watched_launches = 0);

// By how much the unchanged runs differ, 0.1 for a tenth; 0 when fewer than two say.
double spread_of(const std::vector<TrialRun>& unchanged);

std::string trial_text(const Trial& trial);
Json trial_json(const Trial& trial);

}  // namespace saturate::observe
