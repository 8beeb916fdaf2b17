// SPDX-License-Identifier: Apache-2.0
// Pictures of the report as inline SVG.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "observe/analyse/analysis.h"

namespace saturate::observe {

// Leaves are too many for colours: these groups share one each.
struct LeafGroup {
  std::string_view name, colour;
};
const LeafGroup& group_of(Leaf leaf);

std::string legend();                                      // of the groups
std::string budget_bar(const Budget& budget);              // one bar, shares left to right
std::string timeline_chart(const DeviceAnalysis& device);  // shares over the time of the capture
// Time of each step, with its busy part; empty without steps. Thinned to 600 points at most, each
// the slowest of its steps.
std::string step_chart(const StepAnalysis& steps);
struct MemoryLine {
  std::string_view name, colour;
  const Curve* curve;
};
// Bytes over time, from zero, with a legend; empty when no line has two samples.
std::string memory_chart(const std::vector<MemoryLine>& lines);

}  // namespace saturate::observe
