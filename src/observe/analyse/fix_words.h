// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/analyse/fixes.h"

namespace saturate::observe {

// Fills evidence, first action and caveat of `fix` from what the capture shows.
void add_words(Fix& fix, const Analysis& analysis, const ClockHold& clock);

// The share of the first device's time in the leaves that `kind` is about.
double attributed_share(FixKind kind, const Analysis& analysis, const ClockHold& clock);

}  // namespace saturate::observe
