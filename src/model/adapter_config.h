// SPDX-License-Identifier: Apache-2.0
// adapter_config.json of PEFT: what an adapter of low rank is, beside its weights.
// Source: github.com/huggingface/peft, src/peft/tuners/lora/config.py.
#pragma once
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "model/hf_weights.h"
#include "model/lora.h"

namespace saturate::model {

struct AdapterConfig {
  std::string base;  // base_model_name_or_path; empty: not said
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;
  bool rank_stabilised = false;
  // Of single modules, by their names or ends of them; the first that fits counts.
  std::vector<std::pair<std::string, int64_t>> ranks;
  std::vector<std::pair<std::string, double>> alphas;

  int64_t rank_of(const std::string& module) const;
  float scale_of(const std::string& module, int64_t rank) const;
};

// Which modules have an adapter is said by the tensors, not by target_modules. What an adapter may be
// that this is not (DoRA, trained copies of whole modules, biases, starts that change the base's weights,
// regular expressions for ranks) is refused, as is any field that is neither known nor empty.
// Errors: invalid_argument or unsupported, naming `where`, the field and its value.
AdapterConfig parse_adapter_config(const Json& json, const std::string& where);
AdapterConfig read_adapter_config(const std::string& folder);

// The same file for an adapter of a model with these tensors. `task`: "SEQ_2_SEQ_LM" or "CAUSAL_LM".
Json to_adapter_config(const Lora& lora, std::span<const TensorMapping> model, const char* task);

}  // namespace saturate::model
