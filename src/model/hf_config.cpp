// SPDX-License-Identifier: Apache-2.0
// Writing; hf_config_read.cpp reads.
#include "model/hf_config.h"

#include <cmath>

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

// What only some families have, so that each of them alone allows it.
enum Particular : uint32_t {
  kEmbeddingNorm = 1,
  kQkvBiases = 2,
  kOutputBias = 4,
  kHeadNorms = 8,
  kScale = 16,
  kCaps = 32,
  kWindow = 64,
  kRelative = 128,
  kOtherSinusoids = 256,
  kSlowRotary = 512
};

const char* refusal_of_others(const ModelConfig& c, uint32_t allowed) {
  const ModelConfig usual;
  const auto has = [&](Particular p, bool present) { return present && (allowed & p) == 0; };
  if (has(kEmbeddingNorm, c.embedding_norm)) return " has no norm of embeddings";
  if (has(kQkvBiases, c.qkv_biases)) return " has no biases of q, k and v alone";
  if (has(kOutputBias, c.output_bias)) return " has no bias of the output";
  if (has(kHeadNorms, c.qk_norm)) return " has no norms of heads";
  if (has(kScale, c.attention_scale != 0)) return " has the usual scale of attention";
  if (has(kCaps, c.attention_soft_cap != 0 || c.output_soft_cap != 0)) return " has no soft caps";
  if (has(kWindow, c.window != 0)) return " has no window";
  if (has(kRelative, c.relative_buckets != 0)) return " has no relative positions";
  if (has(kOtherSinusoids, c.sinusoid_spacing != usual.sinusoid_spacing || c.first_position != 0))
    return " has the paper's sinusoids from position 0 on";
  if (has(kSlowRotary, c.rotary_factor != 1)) return " has plain rotary positions";
  return nullptr;
}

// What Marian, Pegasus, BART and GPT-2 have in common and Llama does not.
const char* refusal_of_classic(const ModelConfig& c) {
  if (c.norm != NormKind::layer_norm) return " has layer_norm";
  if (c.gated) return " has no gated activation";
  if (!c.biases) return " has biases";
  if (c.kv_heads != c.heads) return " has as many key heads as query heads";
  if (c.heads * c.head_size != c.d_model) return " has heads * head_size equal to d_model";
  return nullptr;
}

const char* refusal_of_translator(const ModelConfig& c, PositionKind positions) {
  if (c.positions != positions)
    return positions == PositionKind::learned ? " has learned positions"
                                              : " has sinusoidal positions";
  if (c.norm_eps != 1e-5f) return " has norm_eps 1e-5";
  if (c.pad_id < 0 || c.pad_id >= c.vocab_source) return " needs a pad_id of both vocabularies";
  return refusal_of_classic(c);
}

const char* refusal_of_marian(const ModelConfig& c) {
  if (c.norm_position != NormPosition::post) return " is post-norm";
  if (c.final_norm) return " has no final norm";
  if (const char* why = refusal_of_translator(c, PositionKind::sinusoidal)) return why;
  return refusal_of_others(c, kOutputBias);
}

// Pegasus, M2M100 and mBART; and BART, which is post-norm.
const char* refusal_of_joint(const ModelConfig& c, bool pre, PositionKind positions,
                             uint32_t allowed) {
  if (c.norm_position != (pre ? NormPosition::pre : NormPosition::post))
    return pre ? " is pre-norm" : " is post-norm";
  if (c.final_norm != pre) return pre ? " has a final norm" : " has no final norm";
  if (!c.shared_embeddings) return " has one vocabulary";
  if (!c.tied_output) return " has the embeddings as its output";
  if (const char* why = refusal_of_translator(c, positions)) return why;
  return refusal_of_others(c, allowed);
}

const char* refusal_of_m2m100(const ModelConfig& c) {
  if (c.first_position != 2) return " counts positions from 2";
  return refusal_of_joint(c, true, PositionKind::sinusoidal, kOtherSinusoids);
}

const char* refusal_of_t5(const ModelConfig& c) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (c.norm != NormKind::rms_norm) return " has rms_norm";
  if (c.biases || c.qkv_biases) return " has no biases";
  if (c.scale_embedding) return " does not scale embeddings";
  if (!c.shared_embeddings) return " has one vocabulary";
  if (c.attention_scale != 1.0f) return " does not scale scores";
  if (c.kv_heads != c.heads) return " has as many key heads as query heads";
  return refusal_of_others(c, kRelative | kScale);
}

const char* refusal_of_gpt2(const ModelConfig& c) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (c.positions != PositionKind::learned) return " has learned positions";
  if (c.scale_embedding) return " does not scale embeddings";
  if (const char* why = refusal_of_classic(c)) return why;
  return refusal_of_others(c, 0);
}

const char* refusal_of_llama(const ModelConfig& c, uint32_t allowed = kSlowRotary) {
  if (c.norm_position != NormPosition::pre) return " is pre-norm";
  if (c.positions != PositionKind::rotary) return " has rotary positions";
  if (!c.gated) return " has a gated activation";
  if (c.scale_embedding) return " does not scale embeddings";
  return refusal_of_others(c, allowed);
}

// Mistral, Qwen 2 and Qwen 3.
const char* refusal_of_unbiased(const ModelConfig& c, uint32_t allowed) {
  if (c.biases) return " has no biases of all projections";
  if (c.norm != NormKind::rms_norm) return " has rms_norm";
  if (c.full_attention_every != 0) return " has its window in every layer";
  return refusal_of_llama(c, allowed | kSlowRotary | kWindow);
}

const char* refusal_of_gemma2(const ModelConfig& c) {
  if (!c.final_norm) return " has a final norm";
  if (c.positions != PositionKind::rotary) return " has rotary positions";
  if (!c.gated) return " has a gated activation";
  if (!c.scale_embedding) return " scales embeddings";
  if (c.biases) return " has no biases";
  if (!c.tied_output) return " has the embeddings as its output";
  if (c.window == 0 || c.full_attention_every != 2) return " has a window in every second layer";
  return refusal_of_others(c, kScale | kCaps | kWindow);
}

const char* refusal_of_mixtral(const ModelConfig& c) {
  if (c.biases) return " has no biases";
  if (c.expert_every != 1) return " has experts in every layer";
  if (c.expert_routing != ExpertRouting::dropless) return " drops no token";
  if (c.capacity_factor != ModelConfig{}.capacity_factor) return " has no capacity_factor";
  if (c.experts_per_token == 1) return " divides gates by their sum";
  return refusal_of_llama(c, 0);
}

// The names are those of Marian, Pegasus, M2M100, BART and mBART; what only Marian has is added by
// marian_config.
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
              {"static_position_embeddings", c.positions == PositionKind::sinusoidal},
              {"scale_embedding", c.scale_embedding},
              {"normalize_before", pre},
              {"normalize_embedding", c.embedding_norm},
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

Json t5_config(const ModelConfig& c) {
  const bool tanh = c.activation == ActivationKind::gelu_tanh;
  const std::string activation =
      c.gated && tanh ? "gelu" : std::string(hf_activation(c.activation));  // their short name
  Json out = {{"model_type", "t5"},
              {"architectures", Json::Array{"T5ForConditionalGeneration"}},
              {"is_encoder_decoder", true},
              {"vocab_size", c.vocab_source},
              {"tie_word_embeddings", c.tied_output},
              {"scale_decoder_outputs", c.scaled_final_norm},
              {"d_model", c.d_model},
              {"d_kv", c.head_size},
              {"num_heads", c.heads},
              {"d_ff", c.ffn},
              {"num_layers", c.encoder_layers},
              {"num_decoder_layers", c.decoder_layers},
              {"feed_forward_proj", (c.gated ? "gated-" : "") + activation},
              {"relative_attention_num_buckets", c.relative_buckets},
              {"relative_attention_max_distance", c.relative_distance},
              {"n_positions", c.max_positions},
              {"layer_norm_epsilon", c.norm_eps},
              {"dropout_rate", c.dropout},
              {"decoder_start_token_id", c.decoder_start_id}};
  add_special_ids(out, c);
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

// Llama and those that follow it.
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
  if (c.rotary_factor != 1.0f && c.rotary_original == 0) {
    out.add("rope_scaling", Json{{"rope_type", "linear"}, {"factor", c.rotary_factor}});
  } else if (c.rotary_factor != 1.0f) {
    out.add("rope_scaling", Json{{"rope_type", "llama3"},
                                 {"factor", c.rotary_factor},
                                 {"low_freq_factor", c.rotary_low},
                                 {"high_freq_factor", c.rotary_high},
                                 {"original_max_position_embeddings", c.rotary_original}});
  }
  add_special_ids(out, c);
  return out;
}

// Mistral, Qwen 2 and Qwen 3. A window of null is none.
Json windowed_config(const ModelConfig& c, const char* type, const char* architecture) {
  Json out = rotary_config(c, type, architecture);
  out.add("sliding_window", c.window > 0 ? Json(c.window) : Json());
  if (std::string_view(type) == "mistral") return out;
  out.add("use_sliding_window", c.window > 0);
  out.add("max_window_layers", 0);
  return out;
}

Json gemma2_config(const ModelConfig& c) {
  Json out = rotary_config(c, "gemma2", "Gemma2ForCausalLM");
  out.add("hidden_activation", c.activation == ActivationKind::gelu_tanh
                                   ? "gelu_pytorch_tanh"
                                   : hf_activation(c.activation));
  // Their type is an integer, and the scale its root rounded to a float.
  const double scale = c.attention_scale,
               scalar = scale > 0 ? 1.0 / (scale * scale) : static_cast<double>(c.head_size);
  const bool whole = std::abs(scalar - std::round(scalar)) < 1e-6 * scalar;
  out.add("query_pre_attn_scalar", whole ? Json(std::llround(scalar)) : Json(scalar));
  out.add("sliding_window", c.window);
  out.add("attn_logit_softcapping", c.attention_soft_cap > 0 ? Json(c.attention_soft_cap) : Json());
  out.add("final_logit_softcapping", c.output_soft_cap > 0 ? Json(c.output_soft_cap) : Json());
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
  if (c.eos_id >= 0 && c.more_eos_ids.empty()) {
    out.add("eos_token_id", c.eos_id);
  } else if (c.eos_id >= 0) {
    Json ids = Json::Array{c.eos_id};
    for (const int64_t id : c.more_eos_ids) ids.push_back(id);
    out.add("eos_token_id", std::move(ids));
  }
  if (c.pad_id >= 0) out.add("pad_token_id", c.pad_id);
}

HfClass nearest_hf_class(const ModelConfig& config) {
  const bool pre = config.norm_position == NormPosition::pre;
  if (config.kind == ModelKind::encoder_decoder) {
    if (config.positions == PositionKind::relative) return HfClass::t5;
    if (config.embedding_norm) return pre ? HfClass::mbart : HfClass::bart;
    if (config.sinusoid_spacing != SinusoidSpacing::paper && config.first_position != 0 && pre)
      return HfClass::m2m100;
    return pre ? HfClass::pegasus : HfClass::marian;
  }
  if (config.norm != NormKind::rms_norm) return HfClass::gpt2;
  if (config.experts > 0) return HfClass::mixtral;
  if (config.norm_position == NormPosition::sandwich) return HfClass::gemma2;
  if (config.qk_norm) return HfClass::qwen3;
  if (config.qkv_biases) return HfClass::qwen2;
  return config.window > 0 ? HfClass::mistral : HfClass::llama;
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
      name = "PegasusForConditionalGeneration";
      why = refusal_of_joint(config, true, PositionKind::sinusoidal, kOutputBias);
      break;
    case HfClass::m2m100:
      name = "M2M100ForConditionalGeneration", why = refusal_of_m2m100(config);
      break;
    case HfClass::bart:
    case HfClass::mbart: {
      const bool pre = nearest == HfClass::mbart;
      name = pre ? "MBartForConditionalGeneration" : "BartForConditionalGeneration";
      why = refusal_of_joint(config, pre, PositionKind::learned, kOutputBias | kEmbeddingNorm);
      break;
    }
    case HfClass::t5:
      name = "T5ForConditionalGeneration", why = refusal_of_t5(config);
      break;
    case HfClass::mistral:
      name = "MistralForCausalLM", why = refusal_of_unbiased(config, 0);
      break;
    case HfClass::qwen2:
      name = "Qwen2ForCausalLM", why = refusal_of_unbiased(config, kQkvBiases);
      break;
    case HfClass::qwen3:
      name = "Qwen3ForCausalLM", why = refusal_of_unbiased(config, kHeadNorms);
      break;
    case HfClass::gemma2:
      name = "Gemma2ForCausalLM", why = refusal_of_gemma2(config);
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
    case HfClass::m2m100:
      out = translator_config(config, "m2m_100", "M2M100ForConditionalGeneration");
      break;
    case HfClass::bart:
      out = translator_config(config, "bart", "BartForConditionalGeneration");
      break;
    case HfClass::mbart:
      out = translator_config(config, "mbart", "MBartForConditionalGeneration");
      break;
    case HfClass::t5:
      out = t5_config(config);
      break;
    case HfClass::mistral:
      out = windowed_config(config, "mistral", "MistralForCausalLM");
      break;
    case HfClass::qwen2:
      out = windowed_config(config, "qwen2", "Qwen2ForCausalLM");
      break;
    case HfClass::qwen3:
      out = windowed_config(config, "qwen3", "Qwen3ForCausalLM");
      break;
    case HfClass::gemma2:
      out = gemma2_config(config);
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
