// SPDX-License-Identifier: Apache-2.0
// Pictures of the report as inline SVG.
#pragma once
#include <string>

#include "observe/analyse/analysis.h"

namespace saturate::observe {

std::string legend();                                      // of the groups
std::string budget_bar(const Budget& budget);              // one bar, shares left to right
std::string timeline_chart(const DeviceAnalysis& device);  // shares over the time of the capture
// Time of each step, with its busy part; empty without steps. Thinned to 600 points at most, each
// the slowest of its steps.
std::string step_chart(const StepAnalysis& steps);

}  // namespace saturate::observe
