// SPDX-License-Identifier: Apache-2.0
// Model folders from and into a parameter store.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "model/adapter_folder.h"
#include "model/hf_weights.h"
#include "model/model_config.h"
#include "ops/parameters.h"
#include "runtime/stream.h"

namespace saturate::model {

class PanelFile;

// Warns, once in a process, of a Marian model whose decoder does not start from zeros.
void warn_of_start_row(const ModelConfig& config, const GetParameter& get);

// save_hf() of what `store` ships, one parameter after another; with adapters save_adapter(). Rows that pad a vocabulary are left
// out. Warns of a Marian model whose decoder does not start from zeros. Synchronises. Errors: those
// of save_hf and require_finite.
void save_model(const std::string& folder, const ModelConfig& config,
                const TranslateConfig& translate, const ParameterStore& store);

// The weights of a folder as ParameterStore::set_all() takes them, with `adapter` merged where there is one; one of
// several side by side (whose Lora `config` has then) lies beside them.
// Errors: those of load_hf_weights.
std::vector<float> read_weights(const std::string& folder, const ModelConfig& config,
                                const Adapter* adapter = nullptr);

// Reads the weights into the masters of `store` and refreshes the compute copy; padding rows become
// zero. Where the store packs, matrices that it keeps packed alone are read so, by all threads, without
// a copy in full. Synchronises. Errors: those of load_hf_weights; the store may hold part of the new weights
// then. Where `config` has an adapter `folder` is its, and the base is read from Lora::base. Several side by side
// are given as `adapter`. Matrices that `panels` has (model/panel_file.h), of this folder, are not read but lie there;
// not together with an adapter.
void load_weights(const std::string& folder, const ModelConfig& config, ParameterStore& store,
                  const Adapter* adapter = nullptr,
                  const std::shared_ptr<const PanelFile>& panels = {});

}  // namespace saturate::model
