// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/analyse/fix_edits.h"
#include "observe/analyse/fixes.h"
#include "observe/analyse/growth.h"

namespace saturate::observe {

// Fills evidence, first action, caveat and what the number assumes of `fix` from what the capture
// shows.
void add_words(Fix& fix, const Analysis& analysis, const ClockHold& clock,
               const EditSettings& settings, const Growth& growth);

// The share of the device's time in exposed copies to the host but for small ones, which are values
// that are read.
double bulk_out_share(const DeviceAnalysis& device);

// The share of the first device's time in the leaves that `kind` is about.
double attributed_share(FixKind kind, const Analysis& analysis, const ClockHold& clock);

}  // namespace saturate::observe
