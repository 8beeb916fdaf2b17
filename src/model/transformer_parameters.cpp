// SPDX-License-Identifier: Apache-2.0
// Declaration of a Transformer's parameters: names, shapes and how they start.
#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "model/transformer.h"

namespace saturate::model {

LinearIds Transformer::declare_linear(ParameterStore& store, const std::string& name, int64_t out,
                                      int64_t in, float scale) {
  // Encoder-decoder: Glorot uniform. Decoder-only: normal 0.02, as GPT-2 (Radford et al., 2019).
  const bool lm = config_.kind == ModelKind::decoder_only;
  const float bound = std::sqrt(6.0f / static_cast<float>(in + out));
  LinearIds ids;
  ids.weight = store.add({.name = name + ".weight",
                          .rows = out,
                          .cols = in,
                          .init = lm ? Init::normal : Init::uniform,
                          .init_scale = scale * (lm ? 0.02f : bound),
                          .decay = true});
  if (config_.biases) ids.bias = store.add({.name = name + ".bias", .cols = out});
  return ids;
}

NormIds Transformer::declare_norm(ParameterStore& store, const std::string& name) {
  NormIds ids;
  ids.weight = store.add({.name = name + ".weight", .cols = config_.d_model, .init = Init::ones});
  if (config_.norm == kernels::NormKind::layer_norm) {
    ids.bias = store.add({.name = name + ".bias", .cols = config_.d_model});
  }
  return ids;
}

LayerIds Transformer::declare_layer(ParameterStore& store, const std::string& prefix, bool cross) {
  const int64_t d = config_.d_model;
  const int64_t q = config_.heads * config_.head_size, kv = config_.kv_heads * config_.head_size;
  // What is added to the residual stream starts smaller in deep decoder-only models (GPT-2).
  const float residual = config_.kind == ModelKind::decoder_only
                             ? 1.0f / std::sqrt(2.0f * static_cast<float>(config_.decoder_layers))
                             : 1.0f;
  LayerIds l;
  l.self_norm = declare_norm(store, prefix + ".self_norm");
  l.self_qkv = declare_linear(store, prefix + ".self.qkv", q + 2 * kv, d, 1.0f);
  l.self_out = declare_linear(store, prefix + ".self.out", d, q, residual);
  if (cross) {
    l.cross_norm = declare_norm(store, prefix + ".cross_norm");
    l.cross_q = declare_linear(store, prefix + ".cross.q", q, d, 1.0f);
    l.cross_kv = declare_linear(store, prefix + ".cross.kv", 2 * kv, d, 1.0f);
    l.cross_out = declare_linear(store, prefix + ".cross.out", d, q, 1.0f);
  }
  l.ffn_norm = declare_norm(store, prefix + ".ffn_norm");
  l.ffn_in =
      declare_linear(store, prefix + ".ffn.in", config_.ffn * (config_.gated ? 2 : 1), d, 1.0f);
  l.ffn_out = declare_linear(store, prefix + ".ffn.out", d, config_.ffn, residual);
  return l;
}

Transformer::Transformer(const ModelConfig& config, ParameterStore& store) : config_(config) {
  const bool lm = config_.kind == ModelKind::decoder_only;
  const int64_t d = config_.d_model;
  const float embedding_std = lm ? 0.02f : 1.0f / std::sqrt(static_cast<float>(d));
  // Marian starts the decoder from a zero embedding, and transformers from the row of <pad>, which
  // it keeps at zero: so do we, or what we train would be another model there.
  const int64_t start_row = !lm && config_.decoder_start_id == config_.pad_id ? config_.pad_id : -1;
  const auto table = [&](const std::string& name, int64_t rows, float std, int64_t zero_row = -1) {
    return store.add({.name = name,
                      .rows = rows,
                      .cols = d,
                      .init = Init::normal,
                      .init_scale = std,
                      .decay = true,
                      .zero_row = zero_row});
  };
  const int64_t source_rows = padded_vocab(config_.vocab_source);
  const int64_t target_rows = padded_vocab(config_.vocab_target);
  const bool learned = config_.positions == PositionKind::learned;
  if (lm) {
    target_embedding_ = table("decoder.embed.weight", target_rows, embedding_std);
  } else if (config_.shared_embeddings) {
    source_embedding_ = target_embedding_ =
        table("shared.weight", target_rows, embedding_std, start_row);
  } else {
    source_embedding_ = table("encoder.embed.weight", source_rows, embedding_std);
    target_embedding_ = table("decoder.embed.weight", target_rows, embedding_std, start_row);
  }
  if (!lm) {
    if (learned)
      source_positions_ = table("encoder.positions.weight", config_.max_positions, 0.02f);
    for (int64_t i = 0; i < config_.encoder_layers; ++i) {
      encoder_.push_back(declare_layer(store, "encoder.layers." + std::to_string(i), false));
    }
    if (config_.final_norm) encoder_final_ = declare_norm(store, "encoder.final_norm");
  }
  if (learned) target_positions_ = table("decoder.positions.weight", config_.max_positions, 0.02f);
  for (int64_t i = 0; i < config_.decoder_layers; ++i) {
    decoder_.push_back(declare_layer(store, "decoder.layers." + std::to_string(i), !lm));
  }
  if (config_.final_norm) decoder_final_ = declare_norm(store, "decoder.final_norm");
  if (!config_.tied_output) output_ = table("output.weight", target_rows, embedding_std);
}

void Transformer::make_tables(const ParameterStore& store) {
  if (config_.positions != PositionKind::sinusoidal) return;
  const std::vector<float> table = sinusoidal_positions(config_.max_positions, config_.d_model);
  const saturate::Stream stream(store.device());
  sinusoids_ = Buffer(store.device(), table.size() * size_of(store.wide_type()));
  if (store.wide_type() == DType::f64) {
    std::copy(table.begin(), table.end(), sinusoids_.as<double>());
    return;
  }
  copy_to_device(stream, sinusoids_.data(), table.data(), sinusoids_.bytes());
  stream.synchronize();
}

}  // namespace saturate::model
