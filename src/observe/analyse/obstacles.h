// SPDX-License-Identifier: Apache-2.0
// What keeps a step from being captured as a graph.
#pragma once
#include <string>
#include <vector>

#include "observe/analyse/fixes.h"
#include "observe/analyse/replay.h"

namespace saturate::observe {

// Means of a step; a wait counts where kernels were launched since the one before.
struct Obstacles {
  double waits = 0;        // for the device, or to read from it
  double copies = 0;       // from pageable memory, which wait
  double allocations = 0;  // of device or pinned memory
  double same_steps = 1;  // the share of steps that are the commonest sequence of kernels and grids

  // The fixes that clear the way, in the order in which they stand in it.
  std::vector<FixKind> fixes() const;
  bool shapes_change() const { return same_steps < 0.75; }
  bool no_two_alike() const { return same_steps < 0.25; }
  std::string words() const;  // a sentence; empty when nothing is in the way
};

// Cost       O(operations).
Obstacles find_obstacles(const Replay& replay);

}  // namespace saturate::observe
