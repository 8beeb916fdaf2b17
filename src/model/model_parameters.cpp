// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cmath>

#include "model/model_config.h"

namespace saturate::model {
namespace {

class Lister {
 public:
  explicit Lister(const ModelConfig& config) : c_(config) {}

  void matrix(const std::string& name, int64_t rows, int64_t cols) {
    out.push_back({name, rows, cols, false});
  }
  void vector(const std::string& name, int64_t cols) { out.push_back({name, 1, cols, true}); }
  void linear(const std::string& name, int64_t rows, int64_t cols) {
    matrix(name + ".weight", rows, cols);
    if (c_.biases) vector(name + ".bias", rows);
  }
  void norm(const std::string& name) {
    vector(name + ".weight", c_.d_model);
    if (c_.norm == kernels::NormKind::layer_norm) vector(name + ".bias", c_.d_model);
  }
  void stack(const std::string& side, int64_t layers, bool cross) {
    const int64_t C = c_.d_model, Q = c_.heads * c_.head_size, KV = c_.kv_heads * c_.head_size;
    if (c_.positions == PositionKind::learned) {
      matrix(side + ".positions.weight", c_.max_positions, C);
    }
    for (int64_t n = 0; n < layers; ++n) {
      const std::string layer = fmt::format("{}.layers.{}.", side, n);
      linear(layer + "self.qkv", Q + 2 * KV, C);
      linear(layer + "self.out", C, Q);
      norm(layer + "self_norm");
      if (cross) {
        linear(layer + "cross.q", Q, C);
        linear(layer + "cross.kv", 2 * KV, C);
        linear(layer + "cross.out", C, Q);
        norm(layer + "cross_norm");
      }
      linear(layer + "ffn.in", c_.gated ? 2 * c_.ffn : c_.ffn, C);
      linear(layer + "ffn.out", C, c_.ffn);
      norm(layer + "ffn_norm");
    }
    if (c_.final_norm) norm(side + ".final_norm");
  }

  std::vector<ParameterShape> out;

 private:
  const ModelConfig& c_;
};

bool shares(const ModelConfig& config) {
  return config.kind == ModelKind::encoder_decoder && config.shared_embeddings;
}

}  // namespace

std::string source_embedding_name(const ModelConfig& config) {
  return shares(config) ? "shared.weight" : "encoder.embed.weight";
}
std::string target_embedding_name(const ModelConfig& config) {
  return shares(config) ? "shared.weight" : "decoder.embed.weight";
}

std::vector<ParameterShape> model_parameters(const ModelConfig& config) {
  Lister list(config);
  const bool has_encoder = config.kind == ModelKind::encoder_decoder;
  if (has_encoder) list.matrix(source_embedding_name(config), config.vocab_source, config.d_model);
  if (!shares(config)) {
    list.matrix(target_embedding_name(config), config.vocab_target, config.d_model);
  }
  if (has_encoder) list.stack("encoder", config.encoder_layers, false);
  list.stack("decoder", config.decoder_layers, has_encoder);
  if (!config.tied_output) list.matrix("output.weight", config.vocab_target, config.d_model);
  return std::move(list.out);
}

std::vector<float> sinusoidal_positions(int64_t positions, int64_t width) {
  std::vector<float> table(static_cast<size_t>(positions * width));
  const int64_t half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double rate =
        std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p) * rate;
      table[static_cast<size_t>(p * width + i)] = static_cast<float>(std::sin(angle));
      table[static_cast<size_t>(p * width + half + i)] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

}  // namespace saturate::model
