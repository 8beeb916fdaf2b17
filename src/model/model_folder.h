// SPDX-License-Identifier: Apache-2.0
// Model folders from and into a parameter store.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/model_config.h"
#include "ops/parameters.h"
#include "runtime/stream.h"

namespace saturate::model {

// Refuses a flat array in the order of `store` that holds infinity or what is not a number.
// Errors: invalid_argument naming the parameter, the value and the remedy.
void require_finite(const ParameterStore& store, std::span<const float> masters);

// save_hf() of `masters`, a flat fp32 array in the order of `store`: its own, or their average.
// Rows that pad a vocabulary are left out. Warns of a Marian model whose decoder does not start
// from zeros. Synchronises. Errors: those of save_hf and require_finite.
void save_model(const std::string& folder, const ModelConfig& config,
                const TranslateConfig& translate, const ParameterStore& store,
                const Buffer& masters);

// The weights of a folder as ParameterStore::set_all() takes them. Errors: those of load_hf_weights.
std::vector<float> read_weights(const std::string& folder, const ModelConfig& config);

// Reads the weights into the masters of `store` and refreshes the compute copy; padding rows become
// zero. Synchronises. Errors: those of load_hf_weights; the store may hold part of the new weights
// then.
void load_weights(const std::string& folder, const ModelConfig& config, ParameterStore& store);

}  // namespace saturate::model
