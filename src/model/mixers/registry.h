// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "model/mixers/mixer.h"

namespace saturate::model {

// The mixers of one layer, in the order in which the residual stream passes them.
std::vector<const MixerKind*> layer_mixers(const ModelConfig& config, Stack stack, int64_t layer);

// Checks config.mixers. Errors: invalid_argument naming the mixer and why the model cannot have it.
void validate_mixers(const ModelConfig& config);

}  // namespace saturate::model
