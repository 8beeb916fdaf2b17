// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "ops/parameters.h"

namespace saturate::train {

// Takes every parameter whose canonical name matches one of `patterns` out of training: shell
// wildcards, where * also stands for dots. What training leaves alone is left alone altogether: no
// weight decay, moment, average or part in the gradient's norm. A tied table is one parameter.
// Errors: invalid_argument for a pattern that matches nothing, with the nearest name, and for
// patterns that leave nothing to train.
void freeze_parameters(ParameterStore& store, std::span<const std::string> patterns);

std::vector<std::string> frozen_names(const ParameterStore& store);

}  // namespace saturate::train
