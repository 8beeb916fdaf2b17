// SPDX-License-Identifier: Apache-2.0
// Model configurations as Hugging Face transformers writes them.
#pragma once
#include <optional>
#include <string>

#include "base/json.h"
#include "model/model_config.h"

namespace saturate::model {

// The class that computes what this model computes: MarianMTModel, or ...ForConditionalGeneration of
// Pegasus, M2M100 (NLLB too), Bart, MBart and T5 (mT5 too), GPT2LMHeadModel, or ...ForCausalLM of
// Llama, Mixtral, Mistral, Qwen2, Qwen3 and Gemma2.
enum class HfClass : uint8_t {
  marian,
  pegasus,
  m2m100,
  bart,
  mbart,
  t5,
  gpt2,
  llama,
  mixtral,
  mistral,
  qwen2,
  qwen3,
  gemma2
};

// The class that has what is most particular about this model: of an encoder_decoder relative
// positions (t5), a norm of embeddings (bart, mbart), the other sinusoids (m2m100), norms before
// (pegasus) or behind (marian); of a decoder_only with rms_norm experts, sandwich norms, norms of
// heads, biases of q, k and v, a window, or none of these (llama); gpt2 otherwise.
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

// <folder>/config.json, and of other files there what it leaves open: further ids that end a text
// (generation_config.json), and whether the weights have a bias of the output that is not zero, or an
// output of their own (T5). Errors: io, those of from_hf_config and of SafetensorsReader.
ModelConfig read_model_config(const std::string& folder);

}  // namespace saturate::model
