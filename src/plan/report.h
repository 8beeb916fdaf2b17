// SPDX-License-Identifier: Apache-2.0
// A plan as text, as JSON, and a simulated step as a timeline.
#pragma once
#include <string>

#include "base/json.h"
#include "plan/planner.h"

namespace saturate::plan {

// What starts `ranks` ranks: "torchrun ... {ranks} ..." with the number in place of {ranks}.
std::string started_by(const std::string& launcher, int ranks);

// The flags that make `saturate train` or `saturate bench step` run a layout.
std::string layout_flags(const Estimate& estimate);

// The first `rows` of the ranked table, why the others are slower, what was refused, the command.
std::string to_text(const Plan& plan, const PlanRequest& request, const std::string& launcher,
                    int rows);

// Expected goodput of the fastest layout on 8 to 4,096 devices and on those of the plan; "" when the
// machine says nothing of failures. interval_s: that of the checkpoints, 0: the best one alone.
std::string goodput_text(const Plan& plan, const PlanRequest& request, double interval_s);

Json to_json(const Plan& plan, const PlanRequest& request);

// Trace events for ui.perfetto.dev: a process for each simulated rank, a thread for each lane.
std::string timeline_json(const StepLists& lists);

}  // namespace saturate::plan
