// SPDX-License-Identifier: Apache-2.0
// Folders of adapters as PEFT writes and reads them: adapter_config.json and adapter_model.safetensors,
// whose tensors are named after the modules of the base model in transformers:
// base_model.model.<module>.lora_A.weight (rank, in) and .lora_B.weight (out, rank).
// Source: github.com/huggingface/peft, src/peft/utils/save_and_load.py.
#pragma once
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/adapter_config.h"
#include "model/hf_weights.h"
#include "model/model_config.h"
#include "model/safetensors.h"

namespace saturate::model {

// Whether `folder` holds an adapter and no model.
bool is_adapter_folder(const std::string& folder);
// The module of a weight's tensor; empty for another tensor.
std::string module_of(const std::string& tensor);
// Whether `name` is the module's name or ends it, as PEFT matches target_modules.
bool is_module(const std::string& module, std::string_view name);

// What a new adapter shall be.
struct LoraRequest {
  int64_t rank = 0;
  double alpha = 0;
  double dropout = 0;
  bool rank_stabilised = false;
  std::vector<std::string> targets;  // names of modules, or ends of them; {"all-linear"}: all
  std::string base;
};
// Where it lies in the model of these tensors. Errors: invalid_argument for a target that no module
// is called, or that is no projection of a layer (embedding, output, expert), naming those there are.
Lora lora_for(const LoraRequest& request, std::span<const TensorMapping> model);

/// The weights of an adapter, fp32.
struct Adapter {
  Lora lora;
  std::map<std::string, std::vector<float>> values;  // by LoraLinear::a_name() and b_name()

  // Adds scale B A to the rows that adapters have in a parameter of the base. Rounds once, in fp32: a small
  // change is lost where the result is then held in 16 bits, but not here.
  void merge(const std::string& parameter, std::span<float> weights) const;
};

// Adapters of one model as one, whose parts are those of adapter 0, 1, ... (Lora::side_by_side).
// Errors: invalid_argument for more than 64.
Adapter side_by_side(std::span<const Adapter> adapters);

// An adapter of the model with these tensors. Every tensor must have a place, and with its partner
// the shapes that configuration and model ask for. Errors: invalid_argument naming `where`, tensor,
// shape given and needed, or a value that is not finite; unsupported, as parse_adapter_config.
Adapter parse_adapter(const AdapterConfig& config, std::span<const TensorView> tensors,
                      std::span<const TensorMapping> model, const std::string& where);
// From a folder, for the model in `base`. Errors: those, and io.
Adapter read_adapter(const std::string& folder, const std::string& base, const ModelConfig& model);

// Writes both files into an existing folder, each durable by itself: the adapters of `config`.
// Errors: io; invalid_argument when values are not finite.
void save_adapter(const std::string& folder, const ModelConfig& config, const GetParameter& get);
// Their size, but for a few kilobytes.
uint64_t adapter_bytes(const Lora& lora);

}  // namespace saturate::model
