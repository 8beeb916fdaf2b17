// SPDX-License-Identifier: Apache-2.0
// A small model of bytes with random weights, as load_model() would give it.
#pragma once
#include <memory>

#include "train/translation.h"

namespace saturate::train {

// Two adapters of the first layer, for `beside`; B of both is zero, as training begins.
inline model::Lora two_adapters() {
  model::LoraLinear linear;
  linear.projection = "decoder.layers.0.self.qkv";
  linear.columns = 16;
  for (const int32_t adapter : {0, 1}) {
    model::LoraPart& part = linear.parts.emplace_back();
    part.rows = 48;
    part.rank = 2;
    part.scale = 4;
    part.adapter = adapter;
  }
  model::Lora lora;
  lora.linears = {linear};
  lora.side_by_side = 2;
  return lora;
}

inline LoadedModel random_model(model::ModelKind kind, int64_t max_positions = 40,
                                const model::Lora& beside = {}) {
  const data::Tokenizer bytes = data::Tokenizer::bytes();
  LoadedModel m{.folder = "random",
                .config = {},
                .translate = {},
                .tokenizers = {bytes, bytes},
                .languages = {},
                .store = std::make_unique<ParameterStore>(Device{}, DType::f32),
                .transformer = nullptr};
  model::ModelConfig& c = m.config;
  c.kind = kind;
  c.d_model = 16;
  c.encoder_layers = kind == model::ModelKind::encoder_decoder ? 2 : 0;
  c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 8;
  c.ffn = 24;
  c.vocab_source = c.vocab_target = bytes.vocab_size();
  c.max_positions = max_positions;
  c.eos_id = bytes.eos_id();
  c.pad_id = c.decoder_start_id = bytes.pad_id();
  model::ModelConfig declared = c;
  declared.lora = beside;
  m.transformer = std::make_unique<model::Transformer>(declared, *m.store);
  m.store->allocate(ParameterStore::Purpose::inference);
  m.transformer->make_tables(*m.store);
  m.store->initialise(Stream(Device{}), 3);
  // Wider than training begins, so that tokens differ in probability and end-of-sentence is met.
  float* const w = m.store->masters().as<float>();
  for (int64_t i = 0; i < m.store->padded_count(); ++i) w[i] *= 3;
  return m;
}

}  // namespace saturate::train
