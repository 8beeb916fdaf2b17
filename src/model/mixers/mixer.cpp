// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"

#include <cmath>

#include "ops/linear.h"

namespace saturate::model {

LinearIds Declaration::add(const std::string& name, int64_t out, int64_t in, float scale,
                           std::vector<int64_t> blocks) const {
  // Encoder-decoder: Glorot uniform. Decoder-only: normal 0.02, as GPT-2 (Radford et al., 2019).
  const bool lm = config.kind == ModelKind::decoder_only;
  const float bound = std::sqrt(6.0f / static_cast<float>(in + out));
  LinearIds ids;
  ids.weight = store_.add({.name = name + ".weight",
                           .rows = out,
                           .cols = in,
                           .init = lm ? Init::normal : Init::uniform,
                           .init_scale = scale * (lm ? 0.02f : bound),
                           .decay = true,
                           .blocks = blocks});
  if (config.biases) {
    ids.bias = store_.add({.name = name + ".bias", .cols = out, .blocks = std::move(blocks)});
  }
  return ids;
}

LinearIds Declaration::linear(const char* name, int64_t out, int64_t in,
                              std::vector<int64_t> blocks) const {
  return add(prefix_ + "." + name, out, in, 1.0f, std::move(blocks));
}

LinearIds Declaration::output(const char* name, int64_t out, int64_t in) const {
  const float scale = config.kind == ModelKind::decoder_only
                          ? 1.0f / std::sqrt(2.0f * static_cast<float>(config.decoder_layers))
                          : 1.0f;
  return add(prefix_ + "." + name, out, in, scale, {});
}

NormIds Declaration::norm() const {
  NormIds ids;
  ids.weight =
      store_.add({.name = prefix_ + "_norm.weight", .cols = config.d_model, .init = Init::ones});
  if (config.norm == kernels::NormKind::layer_norm) {
    ids.bias = store_.add({.name = prefix_ + "_norm.bias", .cols = config.d_model});
  }
  return ids;
}

Value project(Tape& tape, const LinearIds& ids, Value x) {
  return ops::linear(tape, x, tape.parameter(ids.weight),
                     ids.bias.index >= 0 ? tape.parameter(ids.bias) : Value{});
}

Value Mixer::record_memory(Tape&, Value) const { return {}; }

DecodeState Mixer::decode_state(DType) const { return {}; }

}  // namespace saturate::model
