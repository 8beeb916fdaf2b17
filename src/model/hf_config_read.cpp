// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "model/hf_config.h"

namespace saturate::model {
namespace {

using kernels::ActivationKind;
using kernels::NormKind;

ActivationKind read_activation(JsonFields& in, const char* key, const char* fallback) {
  const std::string name = in.text_or(key, fallback);
  if (name == "relu") return ActivationKind::relu;
  if (name == "gelu") return ActivationKind::gelu_erf;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return ActivationKind::gelu_tanh;
  if (name == "silu" || name == "swish") return ActivationKind::silu;
  in.fail(key, "Saturate has relu, gelu, gelu_new and silu");
}

void need_default(JsonFields& in, const char* key, bool value) {
  if (in.boolean_or(key, value) != value) in.fail(key, "Saturate has no model with this setting");
}

int64_t read_same(JsonFields& in, const char* encoder_key, const char* decoder_key) {
  const int64_t value = in.integer(encoder_key);
  if (in.integer(decoder_key) != value) {
    in.fail(decoder_key, fmt::format("it must equal {}, which is {}", encoder_key, value));
  }
  return value;
}

// An id, the first of a list of ids (Llama's eos), or none.
int64_t read_id(JsonFields& in, const Json& json, const char* key) {
  if (!in.has(key)) return -1;
  const Json::Array* list = json.find(key)->if_array();
  if (list == nullptr) return in.integer(key);
  if (list->empty() || list->front().if_int() == nullptr)
    in.fail(key, "an id or a list of ids is needed");
  return *list->front().if_int();
}

// What Marian and Pegasus have in common.
ModelConfig read_translator(JsonFields& in) {
  ModelConfig c;
  c.d_model = in.integer("d_model");
  c.encoder_layers = in.integer("encoder_layers");
  c.decoder_layers = in.integer("decoder_layers");
  c.heads = c.kv_heads = read_same(in, "encoder_attention_heads", "decoder_attention_heads");
  c.ffn = read_same(in, "encoder_ffn_dim", "decoder_ffn_dim");
  c.vocab_source = in.integer("vocab_size");
  c.vocab_target = c.vocab_source;
  c.tied_output = in.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(in, "activation_function", "gelu");
  c.max_positions = in.integer_or("max_position_embeddings", 1024);
  c.scale_embedding = in.boolean_or("scale_embedding", false);
  c.dropout = static_cast<float>(in.number_or("dropout", 0.1));
  c.attention_dropout = static_cast<float>(in.number_or("attention_dropout", 0.0));
  c.activation_dropout = static_cast<float>(in.number_or("activation_dropout", 0.0));
  c.decoder_start_id = in.integer("decoder_start_token_id");
  need_default(in, "normalize_embedding", false);
  need_default(in, "static_position_embeddings", true);
  return c;
}

ModelConfig read_marian(JsonFields& in) {
  ModelConfig c = read_translator(in);
  c.vocab_target = in.integer_or("decoder_vocab_size", c.vocab_source);
  c.shared_embeddings = in.boolean_or("share_encoder_decoder_embeddings", true);
  need_default(in, "normalize_before", false);
  need_default(in, "add_final_layer_norm", false);
  return c;
}

ModelConfig read_pegasus(JsonFields& in) {
  ModelConfig c = read_translator(in);
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  need_default(in, "tie_word_embeddings", true);
  need_default(in, "normalize_before", true);
  need_default(in, "add_final_layer_norm", true);
  return c;
}

ModelConfig read_gpt2(JsonFields& in) {
  ModelConfig c = model_preset("gpt2-124m");
  c.d_model = in.integer("n_embd");
  c.decoder_layers = in.integer("n_layer");
  c.heads = c.kv_heads = in.integer("n_head");
  c.ffn = in.integer_or("n_inner", c.d_model > 0 && c.d_model < (1 << 20) ? 4 * c.d_model : 0);
  c.vocab_target = in.integer("vocab_size");
  c.tied_output = in.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(in, "activation_function", "gelu_new");
  c.max_positions = in.integer_or("n_positions", 1024);
  c.dropout = static_cast<float>(in.number_or("resid_pdrop", 0.1));
  c.attention_dropout = static_cast<float>(in.number_or("attn_pdrop", 0.1));
  c.norm_eps = static_cast<float>(in.number_or("layer_norm_epsilon", 1e-5));
  need_default(in, "scale_attn_weights", true);
  need_default(in, "scale_attn_by_inverse_layer_idx", false);
  need_default(in, "add_cross_attention", false);
  return c;
}

void read_rotary(JsonFields& in, const Json& json, const std::string& where, double usual_base,
                 ModelConfig& c) {
  c.rotary_base = static_cast<float>(in.number_or("rope_theta", usual_base));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!in.has(key)) continue;
    JsonFields rope(*json.find(key), "model", where + ", " + key);
    const std::string type = rope.text_or("rope_type", rope.text_or("type", "default"));
    if (type != "default") in.fail(key, "Saturate has plain rotary positions only");
    c.rotary_base = static_cast<float>(rope.number_or("rope_theta", c.rotary_base));
  }
}

// What Llama and Mixtral have in common.
ModelConfig read_decoder(JsonFields& in, const Json& json, const std::string& where,
                         double usual_base) {
  ModelConfig c = model_preset("llama-110m");
  c.d_model = in.integer("hidden_size");
  c.decoder_layers = in.integer("num_hidden_layers");
  c.heads = in.integer("num_attention_heads");
  c.kv_heads = in.integer_or("num_key_value_heads", c.heads);
  c.head_size = in.integer_or("head_dim", c.heads > 0 ? c.d_model / c.heads : 0);
  c.ffn = in.integer("intermediate_size");
  c.vocab_target = in.integer("vocab_size");
  c.tied_output = in.boolean_or("tie_word_embeddings", false);
  c.activation = read_activation(in, "hidden_act", "silu");
  c.max_positions = in.integer_or("max_position_embeddings", 2048);
  c.attention_dropout = static_cast<float>(in.number_or("attention_dropout", 0.0));
  c.norm_eps = static_cast<float>(in.number_or("rms_norm_eps", 1e-6));
  c.biases = false;
  read_rotary(in, json, where, usual_base, c);
  return c;
}

ModelConfig read_llama(JsonFields& in, const Json& json, const std::string& where) {
  ModelConfig c = read_decoder(in, json, where, 10000.0);
  c.biases = in.boolean_or("attention_bias", false);
  if (in.boolean_or("mlp_bias", false) != c.biases)
    in.fail("mlp_bias", "it must equal attention_bias");
  return c;
}

ModelConfig read_mixtral(JsonFields& in, const Json& json, const std::string& where) {
  ModelConfig c = read_decoder(in, json, where, 1e6);
  c.experts = in.integer_or("num_local_experts", 8);
  c.experts_per_token = in.integer_or("num_experts_per_tok", 2);
  if (c.experts_per_token < 2)
    in.fail("num_experts_per_tok",
            "with one expert a token Mixtral has no gates, and Saturate has");
  c.router_aux_loss = static_cast<float>(in.number_or("router_aux_loss_coef", 0.001));
  c.router_z_loss = static_cast<float>(in.number_or("router_z_loss", 0.0));
  if (in.has("sliding_window"))
    in.fail("sliding_window", "Saturate's models attend to the whole text; null is needed");
  return c;
}

}  // namespace

ModelConfig from_hf_config(const Json& json, const std::string& where) {
  JsonFields in(json, "model", where);
  const std::string type = in.text("model_type");
  ModelConfig c;
  if (type == "saturate") {
    c = model_config_from_json(json, where);
  } else if (type == "marian") {
    c = read_marian(in);
  } else if (type == "pegasus") {
    c = read_pegasus(in);
  } else if (type == "gpt2") {
    c = read_gpt2(in);
  } else if (type == "llama") {
    c = read_llama(in, json, where);
  } else if (type == "mixtral") {
    c = read_mixtral(in, json, where);
  } else {
    in.fail("model_type",
            "Saturate reads marian, pegasus, gpt2, llama, mixtral and its own \"saturate\"");
  }
  if (type != "saturate") {
    c.pad_id = read_id(in, json, "pad_token_id");
    c.bos_id = read_id(in, json, "bos_token_id");
    c.eos_id = read_id(in, json, "eos_token_id");
    const bool own_heads = type == "llama" || type == "mixtral";
    if (!own_heads) c.head_size = c.heads > 0 ? c.d_model / c.heads : 0;
    if (!own_heads && c.heads * c.head_size != c.d_model) {
      throw Error(Errc::invalid_argument, "model",
                  fmt::format("{}: {} heads do not divide width {}", where, c.heads, c.d_model));
    }
  }
  try {
    validate(c);
  } catch (const Error& e) {
    throw Error(e.code(), "model", fmt::format("{}: {}", where, e.what()));
  }
  return c;
}

ModelConfig read_model_config(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  return from_hf_config(read_json_file(path), path);
}

}  // namespace saturate::model
