// SPDX-License-Identifier: Apache-2.0
// Which tensor of a model file holds which rows of which parameter.
#include <fmt/format.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "model/hf_config.h"
#include "model/hf_weights.h"

namespace saturate::model {
namespace {

// Names of a parameter of a layer: ours and Hugging Face's, both within the layer. `parts` are the
// names of the matrices that lie in it (ParameterShape::blocks), each a tensor of its own behind
// `theirs`; without parts it is one tensor.
struct LayerName {
  const char* ours;
  const char* theirs;
  std::vector<const char*> parts = {};
};

class Mapper {
 public:
  explicit Mapper(const ModelConfig& config) : c_(config) {
    for (ParameterShape& p : model_parameters(config)) {
      const std::string name = p.name;
      if (p.is_vector) std::swap(p.rows, p.cols);  // so that its parts are rows too
      shapes_.emplace(name, std::move(p));
    }
  }

  // The whole parameter under one name.
  TensorMapping& whole(const std::string& parameter, const std::string& hf_name,
                       std::vector<std::string> aliases = {}) {
    const ParameterShape& p = shape(parameter);
    std::vector<int64_t> hf_shape = {p.rows};
    if (!p.is_vector) hf_shape.push_back(p.cols);
    return out.emplace_back(
        TensorMapping{hf_name, hf_shape, parameter, 0, p.rows, p.cols, false, std::move(aliases)});
  }
  void norm(const std::string& parameter, const std::string& hf_name) {
    whole(parameter + ".weight", hf_name + ".weight");
    if (has(parameter + ".bias")) whole(parameter + ".bias", hf_name + ".bias");
  }
  // A projection whose matrices are tensors of their own: "<prefix><part>.weight" and ".bias".
  void linear(const std::string& parameter, const std::string& prefix,
              const std::vector<const char*>& parts) {
    for (const char* kind : {".weight", ".bias"}) {
      if (!has(parameter + kind)) continue;
      const ParameterShape& p = shape(parameter + kind);
      const std::vector<int64_t> rows = p.blocks.empty() ? std::vector{p.rows} : p.blocks;
      SAT_ASSERT(rows.size() == parts.size());
      int64_t row = 0;
      for (size_t i = 0; i < parts.size(); ++i) {
        std::vector<int64_t> hf_shape = {rows[i]};
        if (!p.is_vector) hf_shape.push_back(p.cols);
        out.push_back(
            {prefix + parts[i] + kind, hf_shape, p.name, row, rows[i], p.cols, false, {}});
        row += rows[i];
      }
      SAT_ASSERT(row == p.rows);
    }
  }
  // Matrices of experts, which lie one below the other: "<prefix><expert>.<part>.weight".
  void experts(const std::string& parameter, const std::string& prefix,
               const std::vector<const char*>& parts) {
    const ParameterShape& p = shape(parameter);
    const int64_t rows = p.rows / c_.experts / std::ssize(parts);
    for (int64_t e = 0; e < c_.experts; ++e) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const int64_t first = (e * std::ssize(parts) + static_cast<int64_t>(i)) * rows;
        out.push_back({fmt::format("{}{}.{}.weight", prefix, e, parts[i]),
                       {rows, p.cols},
                       p.name,
                       first,
                       rows,
                       p.cols,
                       false,
                       {}});
      }
    }
  }
  // GPT-2's Conv1D: the weight is (in, out).
  void conv1d(const std::string& parameter, const std::string& hf_name) {
    const ParameterShape& p = shape(parameter + ".weight");
    out.push_back({hf_name + ".weight", {p.cols, p.rows}, p.name, 0, p.rows, p.cols, true, {}});
    whole(parameter + ".bias", hf_name + ".bias");
  }

  bool has(const std::string& parameter) const { return shapes_.contains(parameter); }
  const ParameterShape& shape(const std::string& parameter) const {
    const auto at = shapes_.find(parameter);
    SAT_ASSERT(at != shapes_.end());
    return at->second;
  }

  const ModelConfig& config() const { return c_; }
  std::vector<TensorMapping> out;

 private:
  const ModelConfig& c_;
  std::map<std::string, ParameterShape> shapes_;
};

const std::vector<LayerName> kTranslatorNames = {
    {"self.qkv", "self_attn.", {"q_proj", "k_proj", "v_proj"}},
    {"self.out", "self_attn.", {"out_proj"}},
    {"self_norm", "self_attn_layer_norm"},
    {"cross.q", "encoder_attn.", {"q_proj"}},
    {"cross.kv", "encoder_attn.", {"k_proj", "v_proj"}},
    {"cross.out", "encoder_attn.", {"out_proj"}},
    {"cross_norm", "encoder_attn_layer_norm"},
    {"ffn.in", "", {"fc1"}},
    {"ffn.out", "", {"fc2"}},
    {"ffn_norm", "final_layer_norm"}};
const std::vector<LayerName> kLlamaNames = {
    {"self.qkv", "self_attn.", {"q_proj", "k_proj", "v_proj"}},
    {"self.out", "self_attn.", {"o_proj"}},
    {"self_norm", "input_layernorm"},
    {"ffn.in", "mlp.", {"gate_proj", "up_proj"}},
    {"ffn.out", "mlp.", {"down_proj"}},
    {"ffn_norm", "post_attention_layernorm"},
    {"experts_norm", "post_attention_layernorm"}};

// What Gemma 2's layers have beside Llama's: norms before the feed-forward block and after both.
const std::vector<LayerName> kGemmaNorms = {{"self_after_norm", "post_attention_layernorm"},
                                            {"ffn_norm", "pre_feedforward_layernorm"},
                                            {"ffn_after_norm", "post_feedforward_layernorm"}};

// The layers of one side; `theirs` stands before "layers.".
void map_layers(Mapper& m, const std::string& side, int64_t layers, const std::string& theirs,
                const std::vector<LayerName>& names) {
  for (int64_t n = 0; n < layers; ++n) {
    const std::string from = fmt::format("{}.layers.{}.", side, n),
                      to = fmt::format("{}layers.{}.", theirs, n);
    for (const LayerName& name : names) {
      if (!m.has(from + name.ours + ".weight")) continue;  // the encoder has no cross-attention
      if (name.parts.empty()) {
        m.norm(from + name.ours, to + name.theirs);
      } else {
        m.linear(from + name.ours, to + name.theirs, name.parts);
      }
    }
  }
}

// Rows before the first position in the tables of BART and mBART: fairseq counted them from the id of
// its padding on.
constexpr int64_t kPaddingPositions = 2;

// Marian, Pegasus, M2M100, BART and mBART.
void map_translator(Mapper& m) {
  const HfClass nearest = nearest_hf_class(m.config());
  const std::string encoder = "model.encoder.embed_tokens.weight";
  const std::string decoder = "model.decoder.embed_tokens.weight";
  if (m.has("shared.weight")) {
    m.whole("shared.weight", "model.shared.weight", {decoder, encoder, "lm_head.weight"});
  } else {
    m.whole("encoder.embed.weight", encoder);
    m.whole("decoder.embed.weight", decoder);
  }
  for (const std::string side : {"encoder", "decoder"}) {
    const std::string to = "model." + side + ".";
    if (m.has(side + ".positions.weight")) {
      TensorMapping& table = m.whole(side + ".positions.weight", to + "embed_positions.weight");
      table.skipped_rows = kPaddingPositions;
      table.hf_shape[0] += kPaddingPositions;
    }
    if (m.config().embedding_norm) m.norm(side + ".embed_norm", to + "layernorm_embedding");
    map_layers(m, side, side == "encoder" ? m.config().encoder_layers : m.config().decoder_layers,
               to, kTranslatorNames);
    if (m.config().final_norm) m.norm(side + ".final_norm", to + "layer_norm");
  }
  if (m.has("output.weight")) m.whole("output.weight", "lm_head.weight");
  const auto constant = [&m](const std::string& name, int64_t rows, int64_t cols, bool sinusoids) {
    m.out.push_back({name, {rows, cols}, "", 0, rows, cols, false, {}, sinusoids});
  };
  if (m.has("output.bias")) {
    m.whole("output.bias", "final_logits_bias").hf_shape = {1, m.config().vocab_target};
  } else if (nearest != HfClass::m2m100) {
    constant("final_logits_bias", 1, m.config().vocab_target, false);
  }
  // transformers reports these as missing, and so to be trained, though Pegasus computes them.
  if (nearest != HfClass::pegasus) return;
  for (const char* side : {"encoder", "decoder"}) {
    constant(fmt::format("model.{}.embed_positions.weight", side), m.config().max_positions,
             m.config().d_model, true);
  }
}

// T5 and mT5: layers are blocks of numbered sublayers.
void map_t5(Mapper& m) {
  m.whole("shared.weight", "shared.weight",
          {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"});
  for (const std::string side : {"encoder", "decoder"}) {
    const bool encoder = side == "encoder";
    m.whole(side + ".relative_bias.weight",
            side + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight");
    const int64_t layers = encoder ? m.config().encoder_layers : m.config().decoder_layers;
    for (int64_t n = 0; n < layers; ++n) {
      const std::string from = fmt::format("{}.layers.{}.", side, n);
      int64_t number = 0;
      const auto sublayer = [&](const std::string& norm) {
        const std::string to = fmt::format("{}.block.{}.layer.{}.", side, n, number++);
        m.norm(from + norm, to + "layer_norm");
        return to;
      };
      std::string to = sublayer("self_norm");
      m.linear(from + "self.qkv", to + "SelfAttention.", {"q", "k", "v"});
      m.linear(from + "self.out", to + "SelfAttention.", {"o"});
      if (!encoder) {
        to = sublayer("cross_norm");
        m.linear(from + "cross.q", to + "EncDecAttention.", {"q"});
        m.linear(from + "cross.kv", to + "EncDecAttention.", {"k", "v"});
        m.linear(from + "cross.out", to + "EncDecAttention.", {"o"});
      }
      to = sublayer("ffn_norm");
      m.linear(from + "ffn.in", to + "DenseReluDense.",
               m.config().gated ? std::vector{"wi_0", "wi_1"} : std::vector{"wi"});
      m.linear(from + "ffn.out", to + "DenseReluDense.", {"wo"});
    }
    m.norm(side + ".final_norm", side + ".final_layer_norm");
  }
  if (m.config().scaled_final_norm) {
    m.out.back().scale = 1.0f / std::sqrt(static_cast<float>(m.config().d_model));
  }
  if (m.has("output.weight")) m.whole("output.weight", "lm_head.weight");
}

void map_gpt2(Mapper& m) {
  m.whole("decoder.embed.weight", "transformer.wte.weight", {"wte.weight", "lm_head.weight"});
  m.whole("decoder.positions.weight", "transformer.wpe.weight");
  for (int64_t n = 0; n < m.config().decoder_layers; ++n) {
    const std::string from = fmt::format("decoder.layers.{}.", n),
                      to = fmt::format("transformer.h.{}.", n);
    m.conv1d(from + "self.qkv", to + "attn.c_attn");
    m.conv1d(from + "self.out", to + "attn.c_proj");
    m.norm(from + "self_norm", to + "ln_1");
    m.conv1d(from + "ffn.in", to + "mlp.c_fc");
    m.conv1d(from + "ffn.out", to + "mlp.c_proj");
    m.norm(from + "ffn_norm", to + "ln_2");
  }
  m.norm("decoder.final_norm", "transformer.ln_f");
  if (m.has("output.weight")) m.whole("output.weight", "lm_head.weight");
  // The published files lack the prefix.
  for (TensorMapping& t : m.out) {
    if (t.hf_name.starts_with("transformer."))
      t.aliases.insert(t.aliases.begin(), t.hf_name.substr(12));
  }
}

// Llama and those whose layers have its names: Mixtral, with experts in place of an mlp, Mistral,
// Qwen and Gemma.
void map_llama(Mapper& m) {
  m.whole("decoder.embed.weight", "model.embed_tokens.weight",
          m.config().tied_output ? std::vector<std::string>{"lm_head.weight"}
                                 : std::vector<std::string>{});
  const bool gemma = nearest_hf_class(m.config()) == HfClass::gemma2;
  std::vector<LayerName> names = kLlamaNames;
  if (gemma) {
    std::erase_if(names, [](const LayerName& n) { return n.ours == std::string("ffn_norm"); });
    names.insert(names.end(), kGemmaNorms.begin(), kGemmaNorms.end());
  }
  map_layers(m, "decoder", m.config().decoder_layers, "model.", names);
  for (int64_t n = 0; m.config().qk_norm && n < m.config().decoder_layers; ++n) {
    const std::string from = fmt::format("decoder.layers.{}.self.", n),
                      to = fmt::format("model.layers.{}.self_attn.", n);
    m.whole(from + "q_norm.weight", to + "q_norm.weight");
    m.whole(from + "k_norm.weight", to + "k_norm.weight");
  }
  for (int64_t n = 0; m.config().experts > 0 && n < m.config().decoder_layers; ++n) {
    const std::string from = fmt::format("decoder.layers.{}.experts.", n),
                      to = fmt::format("model.layers.{}.block_sparse_moe.", n);
    m.whole(from + "router.weight", to + "gate.weight");
    m.experts(from + "in.weight", to + "experts.", {"w1", "w3"});
    m.experts(from + "out.weight", to + "experts.", {"w2"});
  }
  m.norm("decoder.final_norm", "model.norm");
  if (m.has("output.weight")) m.whole("output.weight", "lm_head.weight");
  if (!gemma) return;
  for (TensorMapping& t : m.out) {
    if (t.parameter.ends_with("_norm.weight")) t.shift = 1.0f;  // it multiplies by 1 + weight
  }
}

}  // namespace

std::vector<TensorMapping> own_tensor_mapping(const ModelConfig& config) {
  Mapper m(config);
  for (const ParameterShape& p : model_parameters(config)) m.whole(p.name, p.name);
  return std::move(m.out);
}

std::vector<TensorMapping> translator_tensor_mapping(const ModelConfig& config) {
  Mapper m(config);
  map_translator(m);
  return std::move(m.out);
}

std::vector<TensorMapping> hf_tensor_mapping(const ModelConfig& config) {
  if (hf_refusal(config)) return own_tensor_mapping(config);
  Mapper m(config);
  switch (nearest_hf_class(config)) {
    case HfClass::marian:
    case HfClass::pegasus:
    case HfClass::m2m100:
    case HfClass::bart:
    case HfClass::mbart:
      map_translator(m);
      break;
    case HfClass::t5:
      map_t5(m);
      break;
    case HfClass::gpt2:
      map_gpt2(m);
      break;
    case HfClass::llama:
    case HfClass::mixtral:
    case HfClass::mistral:
    case HfClass::qwen2:
    case HfClass::qwen3:
    case HfClass::gemma2:
      map_llama(m);
      break;
  }
  return std::move(m.out);
}

}  // namespace saturate::model
