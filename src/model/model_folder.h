// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "model/model_config.h"
#include "ops/parameters.h"
#include "runtime/stream.h"

namespace saturate::model {

// save_hf() from the masters of `store`: one parameter at a time crosses to the host. Rows that pad
// a vocabulary are left out. Synchronises. Errors: those of save_hf.
void save_model(const std::string& folder, const ModelConfig& config, const ParameterStore& store,
                const Stream& stream);

// The reverse, then refreshes the compute copy; padding rows become zero. Errors: those of
// load_hf_weights; the store may hold part of the new weights then.
void load_model(const std::string& folder, const ModelConfig& config, ParameterStore& store,
                const Stream& stream);

}  // namespace saturate::model
