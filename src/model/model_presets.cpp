// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/error.h"
#include "model/model_config.h"

namespace saturate::model {
namespace {

struct Preset {
  std::string_view name;
  ModelConfig config;
};

// tiny is ours; base and big are those of Vaswani et al., arXiv:1706.03762, table 3.
ModelConfig translation(int64_t layers, int64_t width, int64_t ffn, int64_t heads, float dropout) {
  ModelConfig c;
  c.encoder_layers = c.decoder_layers = layers;
  c.d_model = width;
  c.ffn = ffn;
  c.heads = c.kv_heads = heads;
  c.head_size = width / heads;
  c.dropout = dropout;
  return c;
}

// Radford et al. 2019, table 2 (as released). No dropout: large corpora are seen about once.
ModelConfig gpt2(int64_t layers, int64_t width, int64_t heads) {
  ModelConfig c = translation(layers, width, 4 * width, heads, 0.0f);
  c.kind = ModelKind::decoder_only;
  c.encoder_layers = 0;
  c.vocab_target = 50257;
  c.shared_embeddings = false;
  c.norm_position = NormPosition::pre;
  c.final_norm = true;
  c.activation = kernels::ActivationKind::gelu_tanh;
  c.positions = PositionKind::learned;
  c.max_positions = 1024;
  c.scale_embedding = false;
  c.bos_id = c.eos_id = 50256;
  return c;
}

// The formula of Touvron et al., arXiv:2302.13971, at the size of the smallest GPT-2.
ModelConfig llama(int64_t layers, int64_t width, int64_t ffn, int64_t heads) {
  ModelConfig c = gpt2(layers, width, heads);
  c.ffn = ffn;
  c.vocab_target = 32000;
  c.norm = kernels::NormKind::rms_norm;
  c.activation = kernels::ActivationKind::silu;
  c.gated = true;
  c.positions = PositionKind::rotary;
  c.max_positions = 2048;
  c.biases = false;
  c.bos_id = 1;
  c.eos_id = 2;
  return c;
}

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {{"tiny", translation(4, 256, 1024, 4, 0.1f)},
                                          {"base", translation(6, 512, 2048, 8, 0.1f)},
                                          {"big", translation(6, 1024, 4096, 16, 0.3f)},
                                          {"gpt2-124m", gpt2(12, 768, 12)},
                                          {"gpt2-355m", gpt2(24, 1024, 16)},
                                          {"gpt2-774m", gpt2(36, 1280, 20)},
                                          {"gpt2-1558m", gpt2(48, 1600, 25)},
                                          {"llama-110m", llama(12, 768, 2048, 12)}};
  return all;
}

}  // namespace

std::vector<std::string_view> model_preset_names() {
  std::vector<std::string_view> names;
  for (const Preset& p : presets()) names.push_back(p.name);
  return names;
}

ModelConfig model_preset(std::string_view name) {
  for (const Preset& p : presets()) {
    if (p.name == name) return p.config;
  }
  throw Error(Errc::invalid_argument, "model",
              fmt::format("there is no preset \"{}\"; there are {}", name,
                          fmt::join(model_preset_names(), ", ")));
}

}  // namespace saturate::model
