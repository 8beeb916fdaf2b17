// SPDX-License-Identifier: Apache-2.0
// Steps that take longer and longer: a list, a cache or a graph that grows in the loop.
#pragma once
#include "observe/analyse/analysis.h"

namespace saturate::observe {

struct Growth {
  // Each quarter's median is above the one before, by 1.1 and more in all, and nearly all steps are
  // longer than those an eighth of the run before; what sets in at one moment does not grow, nor do
  // waits for a lock or a core. Or the same of the kernels of a step, whose number no other program
  // disturbs; the time has then only grown in all.
  bool found = false;
  double mean_ns = 0;   // of a step
  double early_ns = 0;  // the first quarter's median
  // What a step took when the loop began, if it grew before the first quarter's middle as it did
  // after it; at least half of the first quarter's.
  double first_ns = 0;
  double late_ns = 0;                          // the last quarter's median
  Leaf leaf = Leaf::unknown;                   // of which most was added
  double leaf_early_ns = 0, leaf_late_ns = 0;  // of a step, first and last quarter
};

// Not found where fewer than 12 steps are known. Cost: O(n) of the steps.
Growth find_growth(const StepAnalysis& steps);

}  // namespace saturate::observe
