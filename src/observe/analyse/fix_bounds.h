// SPDX-License-Identifier: Apache-2.0
// From two replays of a step, one without what surely goes and one without all that may go, to what a
// fix brings: a bound where the two agree, else an estimate with its range.
#pragma once
#include <algorithm>

#include "observe/analyse/fixes.h"

namespace saturate::observe {

// What is known to go with a cause may differ by as much from what may go with it; more makes the
// bound an estimate.
inline constexpr double kSameBound = 1.10;
// Between runs of one program, of what host code takes: they were seen at 0.61 to 1.26 times the
// time of the run before (docs/guide/doctor_case.md).
inline constexpr double kHostDiffers = 1.65;

// The part of the time that a speedup takes away.
inline double removed(double speedup) { return 1 - 1 / std::max(1.0, speedup); }
// From a step with what surely goes, and one with all that may go.
void set_bound(Fix& f, double base_ns, double surely_ns, double at_most_ns);
// What is left of a gain where half of the time that goes stays after all.
double half_of_time(double speedup);
// A host that keeps ahead of the device gains `ahead`; what of that the fix brings is not known.
void widen(Fix& f, double surely, double ahead);
// Where the time that goes is the host's own, another run has more of it or less: a gain of
// 1 + h becomes 1 + kHostDiffers * h. A remedy takes a third of it at least: of public programs, remedies for
// the host's code left more than half of it (docs/guide/doctor_case.md).
void widen_by_pace(Fix& f, double surely);
// What the driver takes differs from run to run, by two fifths down and a half up, and kernels beside
// a release were seen to be a ninth slower (docs/guide/doctor_case.md).
void set_allocation(Fix& f, double base_ns, double surely_ns, double at_most_ns, double call_ns);

// A replay takes all of a cause away; the first remedy of somebody's program takes a part. Of the estimates for which that
// is known the middle becomes what such remedies brought, and the lower end too; ceilings and upper ends stay. Fixes
// have been ranked and judged before this. Source    159 promises and what was gained
// (docs/adr/0117).
void expect_a_part(FixReport& report);

}  // namespace saturate::observe
