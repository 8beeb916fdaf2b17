// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "observe/ranks/rank_analysis.h"

namespace saturate::observe {

// Fills evidence and first action from what the ranks' own analyses show.
void add_rank_words(RankReport& report, const std::vector<Analysis>& analyses);

}  // namespace saturate::observe
