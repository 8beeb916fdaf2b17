// SPDX-License-Identifier: Apache-2.0
// Models that translate together.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/translator.h"
#include "train/translation.h"

namespace saturate::train {

// Loads several models of one vocabulary as one: the first, whose tokenizers, languages and decoding hold, with
// the rest in `others`. `weights`: of each, above 0; none: all alike. `paths`, `device`, `precision` and `hooks`
// are as load_model() takes them; on_text is called with the first, on_memory with all. Its `max_positions` are
// what every one takes. Errors: those of load_model(); invalid_argument for the number of weights or models, a
// language model (before anything is loaded), and what differs between models that must be alike, naming the first
// token.
LoadedModel load_ensemble(std::span<const std::string> paths, std::span<const double> weights,
                          const std::string& device, const std::string& precision,
                          const LoadHooks& hooks = {});

// What each counts, the first one's first; they add up to 1.
std::vector<double> ensemble_weights(const LoadedModel& model);
// Memory of the weights of a model and of those that translate with it (ParameterStore::weight_bytes).
size_t weight_bytes(const LoadedModel& model);

// What a translator takes of a model and those that translate with it.
std::vector<model::EnsembleModel> ensemble_of(const LoadedModel& model);

}  // namespace saturate::train
