// SPDX-License-Identifier: Apache-2.0
// Writing; hf_config_read.cpp reads.
#include "model/hf_config.h"

#include "base/error.h"

namespace saturate::model {
namespace {

using kernels::ActivationKind;
using kernels::NormKind;

const char* hf_activation(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::relu:
      return "relu";
    case ActivationKind::gelu_tanh:
      return "gelu_new";
    case ActivationKind::gelu_erf:
      return "gelu";
    case ActivationKind::silu:
      return "silu";
    case ActivationKind::identity:
      break;  // no model has it
  }
  return "";
}

// What Marian, Pegasus and GPT-2 have in common and Llama does not.
const char* refusal_of_classic(const ModelConfig& c) {
  if (c.norm != NormKind::layer_norm) return " has layer_norm";
  if (c.gated) return " has no gated activation";
  if (!c.biases) return " has biases";
  if (c.kv_heads != c.heads) return " has as many key heads as query heads";
  if (c.heads * c.head_size != c.d_model) return " has heads * head_size equal to d_model";
  return nullptr;
}

const char* refusal_of_translator(const ModelConfig& c) {
  if (c.positions != PositionKind::sinusoidal) return " has sinusoidal positions";
  if (c.norm_eps != 1e-5f) return " has norm_eps 1e-5";
  if (c.pad_id < 0 || c.pad_id >= c.vocab_source) return " needs a pad_id of both vocabularies";
  return refusal_of_classic(c);
}

const char* refusal_of_marian(const ModelConfig& c) {
  if (c.norm_position != NormPosition::post) return " is post-norm";
  if (c.final_norm) return " has no final norm";
  return refusal_of_translator(c);
}

const char* refusal_of_pegasus(const ModelConfig& c) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (!c.final_norm) return " has a final norm";
  if (!c.shared_embeddings) return " has one vocabulary";
  if (!c.tied_output) return " has the embeddings as its output";
  return refusal_of_translator(c);
}

const char* refusal_of_gpt2(const ModelConfig& c) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (c.positions != PositionKind::learned) return " has learned positions";
  if (c.scale_embedding) return " does not scale embeddings";
  return refusal_of_classic(c);
}

const char* refusal_of_llama(const ModelConfig& c) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (c.positions != PositionKind::rotary) return " has rotary positions";
  if (!c.gated) return " has a gated activation";
  if (c.scale_embedding) return " does not scale embeddings";
  return nullptr;
}

const char* refusal_of_mixtral(const ModelConfig& c) {
  if (c.biases) return " has no biases";
  if (c.expert_every != 1) return " has experts in every layer";
  if (c.expert_routing != ExpertRouting::dropless) return " drops no token";
  if (c.capacity_factor != ModelConfig{}.capacity_factor) return " has no capacity_factor";
  if (c.experts_per_token == 1) return " divides gates by their sum";
  return refusal_of_llama(c);
}

// The names are those of both classes; what only Marian has is added by marian_config.
Json translator_config(const ModelConfig& c, const char* type, const char* architecture) {
  const bool pre = c.norm_position == NormPosition::pre;
  Json out = {{"model_type", type},
              {"architectures", Json::Array{architecture}},
              {"is_encoder_decoder", true},
              {"vocab_size", c.vocab_source},
              {"tie_word_embeddings", c.tied_output},
              {"d_model", c.d_model},
              {"encoder_layers", c.encoder_layers},
              {"decoder_layers", c.decoder_layers},
              {"num_hidden_layers", c.encoder_layers},
              {"encoder_attention_heads", c.heads},
              {"decoder_attention_heads", c.heads},
              {"encoder_ffn_dim", c.ffn},
              {"decoder_ffn_dim", c.ffn},
              {"activation_function", hf_activation(c.activation)},
              {"max_position_embeddings", c.max_positions},
              {"static_position_embeddings", true},
              {"scale_embedding", c.scale_embedding},
              {"normalize_before", pre},
              {"normalize_embedding", false},
              {"add_final_layer_norm", c.final_norm},
              {"dropout", c.dropout},
              {"attention_dropout", c.attention_dropout},
              {"activation_dropout", c.activation_dropout},
              {"decoder_start_token_id", c.decoder_start_id},
              {"forced_eos_token_id", c.eos_id}};
  add_special_ids(out, c);
  return out;
}

Json marian_config(const ModelConfig& c) {
  Json out = translator_config(c, "marian", "MarianMTModel");
  out.add("decoder_vocab_size", c.vocab_target);
  out.add("share_encoder_decoder_embeddings", c.shared_embeddings);
  return out;
}

Json gpt2_config(const ModelConfig& c) {
  Json out = {{"model_type", "gpt2"},
              {"architectures", Json::Array{"GPT2LMHeadModel"}},
              {"vocab_size", c.vocab_target},
              {"tie_word_embeddings", c.tied_output},
              {"n_positions", c.max_positions},
              {"n_ctx", c.max_positions},
              {"n_embd", c.d_model},
              {"n_layer", c.decoder_layers},
              {"n_head", c.heads},
              {"n_inner", c.ffn},
              {"activation_function", hf_activation(c.activation)},
              {"resid_pdrop", c.dropout},
              {"embd_pdrop", c.dropout},
              {"attn_pdrop", c.attention_dropout},
              {"layer_norm_epsilon", c.norm_eps}};
  add_special_ids(out, c);
  return out;
}

// Llama and Mixtral.
Json rotary_config(const ModelConfig& c, const char* type, const char* architecture) {
  Json out = {{"model_type", type},
              {"architectures", Json::Array{architecture}},
              {"vocab_size", c.vocab_target},
              {"tie_word_embeddings", c.tied_output},
              {"max_position_embeddings", c.max_positions},
              {"hidden_size", c.d_model},
              {"intermediate_size", c.ffn},
              {"num_hidden_layers", c.decoder_layers},
              {"num_attention_heads", c.heads},
              {"num_key_value_heads", c.kv_heads},
              {"head_dim", c.head_size},
              {"hidden_act", hf_activation(c.activation)},
              {"attention_dropout", c.attention_dropout},
              {"rms_norm_eps", c.norm_eps},
              {"rope_theta", c.rotary_base}};
  add_special_ids(out, c);
  return out;
}

Json llama_config(const ModelConfig& c) {
  Json out = rotary_config(c, "llama", "LlamaForCausalLM");
  out.add("attention_bias", c.biases);
  out.add("mlp_bias", c.biases);
  return out;
}

Json mixtral_config(const ModelConfig& c) {
  Json out = rotary_config(c, "mixtral", "MixtralForCausalLM");
  out.add("num_local_experts", c.experts);
  out.add("num_experts_per_tok", c.experts_per_token);
  out.add("router_aux_loss_coef", c.router_aux_loss);
  out.add("router_z_loss", c.router_z_loss);
  return out;
}

}  // namespace

void add_special_ids(Json& out, const ModelConfig& c) {
  if (c.bos_id >= 0) out.add("bos_token_id", c.bos_id);
  if (c.eos_id >= 0) out.add("eos_token_id", c.eos_id);
  if (c.pad_id >= 0) out.add("pad_token_id", c.pad_id);
}

HfClass nearest_hf_class(const ModelConfig& config) {
  if (config.kind == ModelKind::encoder_decoder) {
    return config.norm_position == NormPosition::pre ? HfClass::pegasus : HfClass::marian;
  }
  if (config.norm != NormKind::rms_norm) return HfClass::gpt2;
  return config.experts > 0 ? HfClass::mixtral : HfClass::llama;
}

std::optional<std::string> hf_refusal(const ModelConfig& config) {
  for (const std::string& mixer : config.mixers) {
    if (mixer != "self_attention") return "no class of transformers has " + mixer;
  }
  const HfClass nearest = nearest_hf_class(config);
  if (config.experts > 0 && nearest != HfClass::mixtral)
    return "of the classes that it reads or writes only Mixtral has experts";
  const char* name = "MarianMTModel";
  const char* why = nullptr;
  switch (nearest) {
    case HfClass::marian:
      why = refusal_of_marian(config);
      break;
    case HfClass::pegasus:
      name = "PegasusForConditionalGeneration", why = refusal_of_pegasus(config);
      break;
    case HfClass::gpt2:
      name = "GPT2LMHeadModel", why = refusal_of_gpt2(config);
      break;
    case HfClass::llama:
      name = "LlamaForCausalLM", why = refusal_of_llama(config);
      break;
    case HfClass::mixtral:
      name = "MixtralForCausalLM", why = refusal_of_mixtral(config);
      break;
  }
  if (why == nullptr) return std::nullopt;
  return std::string(name) + why;
}

Json to_hf_config(const ModelConfig& config) {
  if (hf_refusal(config)) return to_json(config);
  Json out;
  switch (nearest_hf_class(config)) {
    case HfClass::marian:
      out = marian_config(config);
      break;
    case HfClass::pegasus:
      out = translator_config(config, "pegasus", "PegasusForConditionalGeneration");
      break;
    case HfClass::gpt2:
      out = gpt2_config(config);
      break;
    case HfClass::llama:
      out = llama_config(config);
      break;
    case HfClass::mixtral:
      out = mixtral_config(config);
      break;
  }
  out.add("torch_dtype", "float32");
  return out;
}

}  // namespace saturate::model
