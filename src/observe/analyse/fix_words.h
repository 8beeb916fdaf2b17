// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "observe/analyse/fixes.h"

namespace saturate::observe {

// Fills evidence, first action and caveat of `fix` from what the capture shows.
void add_words(Fix& fix, const Analysis& analysis);

}  // namespace saturate::observe
