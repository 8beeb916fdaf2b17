// SPDX-License-Identifier: Apache-2.0
// Model configurations as Hugging Face transformers writes them: marian, pegasus, gpt2, llama
// and mixtral.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"
#include "model/model_config.h"

namespace saturate::model {

// The class that computes what this model computes: MarianMTModel,
// PegasusForConditionalGeneration (its pre-norm twin), GPT2LMHeadModel, LlamaForCausalLM,
// MixtralForCausalLM (Llama with experts).
enum class HfClass : uint8_t { marian, pegasus, gpt2, llama, mixtral };

// The nearest class: marian for a post-norm encoder_decoder, pegasus for a pre-norm one, llama for
// rms_norm (mixtral with experts), gpt2 otherwise.
HfClass nearest_hf_class(const ModelConfig& config);

// Why no such class computes this model ("MarianMTModel has no final norm"); nothing when one does.
// Dropout rates that a class lacks are no reason: they change training only.
std::optional<std::string> hf_refusal(const ModelConfig& config);

// config.json. A refused model gets {"model_type": "saturate", ...} with our own fields.
// Not carried by Hugging Face fields: activation_dropout of gpt2, dropout and activation_dropout of
// llama and mixtral (read back as 0). router_z_loss is a field of our own beside mixtral's.
Json to_hf_config(const ModelConfig& config);

// bos_token_id, eos_token_id and pad_token_id, those that the model has.
void add_special_ids(Json& out, const ModelConfig& config);

// Reads either form and validates it; heads and layers that differ between encoder and decoder,
// scaled rotary positions and the like are refused. Fields that change no result are ignored.
// Errors: invalid_argument or unsupported, naming `where`, the field and its value.
ModelConfig from_hf_config(const Json& json, const std::string& where);

// <folder>/config.json. Errors: io, and those of from_hf_config.
ModelConfig read_model_config(const std::string& folder);

}  // namespace saturate::model
