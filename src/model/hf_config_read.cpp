// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "model/generation_config.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"
#include "model/marian_npz.h"
#include "model/safetensors.h"

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

// An id, a list of ids (Llama's eos), or none.
std::vector<int64_t> read_ids(JsonFields& in, const Json& json, const char* key) {
  if (!in.has(key)) return {};
  const Json::Array* list = json.find(key)->if_array();
  if (list == nullptr) return {in.integer(key)};
  std::vector<int64_t> ids;
  for (const Json& id : *list) {
    if (id.if_int() == nullptr) in.fail(key, "an id or a list of ids is needed");
    ids.push_back(*id.if_int());
  }
  if (ids.empty()) in.fail(key, "an id or a list of ids is needed");
  return ids;
}

int64_t read_id(JsonFields& in, const Json& json, const char* key) {
  const std::vector<int64_t> ids = read_ids(in, json, key);
  return ids.empty() ? -1 : ids.front();
}

// What Marian, Pegasus, M2M100, BART and mBART have in common.
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
  // Those who leave it out mean </s>, as fairseq did.
  c.decoder_start_id = in.has("decoder_start_token_id") ? in.integer("decoder_start_token_id")
                                                        : in.integer("eos_token_id");
  return c;
}

void need_computed_positions(JsonFields& in) {
  need_default(in, "normalize_embedding", false);
  need_default(in, "static_position_embeddings", true);
}

ModelConfig read_m2m100(JsonFields& in) {
  ModelConfig c = read_translator(in);
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  c.sinusoid_spacing = SinusoidSpacing::tensor2tensor;
  c.first_position = 2;
  need_default(in, "tie_word_embeddings", true);
  if (in.has("num_experts"))
    in.fail("num_experts", "Saturate reads M2M100 and NLLB without experts");
  return c;
}

// BART is post-norm, mBART pre-norm with a final norm.
ModelConfig read_bart(JsonFields& in, bool pre) {
  ModelConfig c = read_translator(in);
  if (pre) c.norm_position = NormPosition::pre;
  c.final_norm = pre;
  c.positions = PositionKind::learned;
  c.embedding_norm = true;
  need_default(in, "tie_word_embeddings", true);
  need_default(in, "normalize_embedding", true);
  need_default(in, "normalize_before", pre);
  need_default(in, "add_final_layer_norm", pre);
  need_default(in, "static_position_embeddings", false);
  return c;
}

// T5 and mT5. What ties the output and scales it has changed between versions of transformers:
// scale_decoder_outputs where it is there, else tie_word_embeddings.
ModelConfig read_t5(JsonFields& in, bool mt5) {
  ModelConfig c;
  c.norm = NormKind::rms_norm;
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  c.positions = PositionKind::relative;
  c.biases = c.scale_embedding = false;
  c.attention_scale = 1.0f;
  c.d_model = in.integer("d_model");
  c.head_size = in.integer("d_kv");
  c.heads = c.kv_heads = in.integer("num_heads");
  c.ffn = in.integer("d_ff");
  c.encoder_layers = in.integer("num_layers");
  c.decoder_layers = in.integer_or("num_decoder_layers", c.encoder_layers);
  c.vocab_source = c.vocab_target = in.integer("vocab_size");
  c.relative_buckets = in.integer_or("relative_attention_num_buckets", 32);
  c.relative_distance = in.integer_or("relative_attention_max_distance", 128);
  c.max_positions = in.integer_or("n_positions", 512);
  c.dropout = c.activation_dropout = c.attention_dropout =
      static_cast<float>(in.number_or("dropout_rate", 0.1));
  c.norm_eps = static_cast<float>(in.number_or("layer_norm_epsilon", 1e-6));
  c.tied_output = in.boolean_or("tie_word_embeddings", !mt5);
  c.scaled_final_norm = !mt5 && in.boolean_or("scale_decoder_outputs", c.tied_output);
  const std::string kind = in.text_or("feed_forward_proj", mt5 ? "gated-gelu" : "relu");
  c.gated = kind.starts_with("gated-");
  const std::string activation = c.gated ? kind.substr(6) : kind;
  if (activation == "relu") {
    c.activation = ActivationKind::relu;
  } else if (activation == "gelu" || activation == "gelu_new") {
    // Ungated the name means the exact function, gated T5's own approximation.
    c.activation =
        c.gated || activation == "gelu_new" ? ActivationKind::gelu_tanh : ActivationKind::gelu_erf;
  } else if (activation == "silu") {
    c.activation = ActivationKind::silu;
  } else {
    in.fail("feed_forward_proj", "Saturate has relu, gelu, silu and these after gated-");
  }
  c.decoder_start_id = in.has("decoder_start_token_id") ? in.integer("decoder_start_token_id")
                                                        : in.integer("pad_token_id");
  return c;
}

ModelConfig read_marian(JsonFields& in) {
  ModelConfig c = read_translator(in);
  c.vocab_target = in.integer_or("decoder_vocab_size", c.vocab_source);
  c.shared_embeddings = in.boolean_or("share_encoder_decoder_embeddings", true);
  need_computed_positions(in);
  need_default(in, "normalize_before", false);
  need_default(in, "add_final_layer_norm", false);
  return c;
}

ModelConfig read_pegasus(JsonFields& in) {
  ModelConfig c = read_translator(in);
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  need_computed_positions(in);
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
    c.rotary_base = static_cast<float>(rope.number_or("rope_theta", c.rotary_base));
    if (rope.number_or("partial_rotary_factor", 1.0) != 1.0)
      in.fail(key, "Saturate rotates whole heads");
    if (type == "default") continue;
    if (type != "linear" && type != "llama3")
      in.fail(key, "Saturate has plain rotary positions, linear and llama3");
    c.rotary_factor = static_cast<float>(rope.number("factor"));
    if (type == "linear") continue;
    c.rotary_low = static_cast<float>(rope.number("low_freq_factor"));
    c.rotary_high = static_cast<float>(rope.number("high_freq_factor"));
    c.rotary_original = rope.integer("original_max_position_embeddings");
  }
}

// Which layers have the window: those that layer_types names, all where there is no such list.
void read_layer_types(JsonFields& in, ModelConfig& c) {
  if (!in.has("layer_types")) return;
  const Json::Array& types = in.list("layer_types");
  std::vector<int64_t> full;
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string* type = types[i].if_string();
    if (type != nullptr && *type == "sliding_attention") continue;
    if (type == nullptr || *type != "full_attention")
      in.fail("layer_types", "Saturate has full_attention and sliding_attention");
    full.push_back(static_cast<int64_t>(i));
  }
  if (std::ssize(types) != c.decoder_layers) in.fail("layer_types", "it must name every layer");
  if (std::ssize(full) == c.decoder_layers) {
    c.window = 0;
    return;
  }
  if (full.empty()) return;
  c.full_attention_every = full.front() + 1;
  for (int64_t i = 0, next = 0; i < c.decoder_layers; ++i) {
    const bool is_full = next < std::ssize(full) && full[static_cast<size_t>(next)] == i;
    if (is_full) ++next;
    if (is_full != ((i + 1) % c.full_attention_every == 0))
      in.fail("layer_types", "Saturate has full attention in every n-th layer only");
  }
}

// What Llama and those that follow it have in common.
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

ModelConfig read_mistral(JsonFields& in, const Json& json, const std::string& where) {
  ModelConfig c = read_decoder(in, json, where, 10000.0);
  c.window = in.integer_or("sliding_window", 0);
  read_layer_types(in, c);
  return c;
}

// Qwen 2, 2.5 and 3.
ModelConfig read_qwen(JsonFields& in, const Json& json, const std::string& where, bool third) {
  ModelConfig c = read_decoder(in, json, where, third ? 1e6 : 10000.0);
  if (third) {
    c.biases = in.boolean_or("attention_bias", false);
    if (c.biases) in.fail("attention_bias", "Saturate reads Qwen 3 without biases");
  }
  c.qkv_biases = !third;
  c.qk_norm = third;
  if (!in.boolean_or("use_sliding_window", false)) return c;
  c.window = in.integer_or("sliding_window", 4096);
  if (in.has("layer_types")) {
    read_layer_types(in, c);
  } else if (in.integer_or("max_window_layers", 28) >= c.decoder_layers) {
    c.window = 0;
  } else if (in.integer_or("max_window_layers", 28) > 0) {
    in.fail("max_window_layers", "Saturate has a window in no layer or in each, 0 is needed");
  }
  return c;
}

ModelConfig read_gemma2(JsonFields& in, const Json& json, const std::string& where) {
  ModelConfig c = read_decoder(in, json, where, 10000.0);
  c.norm_position = NormPosition::sandwich;
  c.scale_embedding = true;
  c.tied_output = in.boolean_or("tie_word_embeddings", true);
  c.activation = read_activation(
      in, in.has("hidden_activation") ? "hidden_activation" : "hidden_act", "gelu_pytorch_tanh");
  const double scalar = in.number_or("query_pre_attn_scalar", 256);
  if (!(scalar > 0)) in.fail("query_pre_attn_scalar", "it must be positive");
  if (scalar != static_cast<double>(c.head_size))
    c.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  // null is none; left out means what Gemma2Config of transformers takes.
  const auto soft_cap = [&](const char* key, double usual) {
    return static_cast<float>(json.find(key) == nullptr ? usual : in.number_or(key, 0));
  };
  c.attention_soft_cap = soft_cap("attn_logit_softcapping", 50);
  c.output_soft_cap = soft_cap("final_logit_softcapping", 30);
  c.window = in.integer_or("sliding_window", 4096);
  c.full_attention_every = 2;
  need_default(in, "attention_bias", false);
  if (in.boolean_or("use_bidirectional_attention", false))
    in.fail("use_bidirectional_attention", "Saturate reads the causal Gemma 2");
  if (in.has("layer_types")) c.full_attention_every = 0;
  read_layer_types(in, c);
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
  } else if (type == "m2m_100") {
    c = read_m2m100(in);
  } else if (type == "bart" || type == "mbart") {
    c = read_bart(in, type == "mbart");
  } else if (type == "t5" || type == "mt5") {
    c = read_t5(in, type == "mt5");
  } else if (type == "mistral") {
    c = read_mistral(in, json, where);
  } else if (type == "qwen2" || type == "qwen3") {
    c = read_qwen(in, json, where, type == "qwen3");
  } else if (type == "gemma2") {
    c = read_gemma2(in, json, where);
  } else {
    in.fail("model_type",
            "Saturate reads marian, pegasus, m2m_100, bart, mbart, t5, mt5, gpt2, llama, mistral, "
            "mixtral, qwen2, qwen3, gemma2 and its own \"saturate\"");
  }
  if (type != "saturate") {
    c.pad_id = read_id(in, json, "pad_token_id");
    c.bos_id = read_id(in, json, "bos_token_id");
    const std::vector<int64_t> ends = read_ids(in, json, "eos_token_id");
    if (!ends.empty()) {
      c.eos_id = ends.front();
      c.more_eos_ids.assign(ends.begin() + 1, ends.end());
    }
    const bool own_heads = c.norm == NormKind::rms_norm;
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

namespace {

// Llama 3's instruct models name all ids that end an answer in this file alone.
void add_generation(const std::string& folder, ModelConfig& c) {
  const std::string path = (std::filesystem::path(folder) / "generation_config.json").string();
  if (!std::filesystem::exists(path)) return;
  const Json json = read_json_file(path);
  JsonFields in(json, "model", path);
  c.sampling = sampling_of(json);
  for (const int64_t id : read_ids(in, json, "eos_token_id")) {
    if (id < 0 || id >= c.vocab_target)
      in.fail("eos_token_id", fmt::format("the vocabulary has {} ids", c.vocab_target));
    if (c.eos_id < 0) c.eos_id = id;
    if (id != c.eos_id && std::ranges::find(c.more_eos_ids, id) == c.more_eos_ids.end())
      c.more_eos_ids.push_back(id);
  }
}

ModelConfig read_marian_folder(const std::string& folder) {
  const MarianFiles files = marian_files(folder);
  int64_t eos = 0;  // unless a vocabulary says otherwise
  if (!files.vocabularies.empty() && files.vocabularies.back().ends_with(".yml")) {
    const std::vector<std::string> pieces = read_marian_vocabulary(files.vocabularies.back());
    const auto found = std::ranges::find(pieces, "</s>");
    if (found != pieces.end()) eos = found - pieces.begin();
  }
  return marian_config(SafetensorsReader(files.weights).tensors(), files.weights, eos);
}

}  // namespace

ModelConfig read_model_config(const std::string& folder) {
  if (is_marian_folder(folder)) return read_marian_folder(folder);
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  const Json json = read_json_file(path);
  ModelConfig c = from_hf_config(json, path);
  if (*json["model_type"].if_string() == "saturate") return c;
  add_generation(folder, c);
  add_what_weights_say(folder, c);
  return c;
}

}  // namespace saturate::model
