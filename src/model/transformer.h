// SPDX-License-Identifier: Apache-2.0
// Encoder-decoder and decoder-only Transformers from the same layers.
#pragma once
#include <functional>
#include <vector>

#include "model/model_config.h"
#include "ops/embedding.h"
#include "ops/parameters.h"
#include "ops/residual_norm.h"
#include "ops/tape.h"

namespace saturate::model {

struct LinearIds {
  ParameterId weight, bias;
};
struct NormIds {
  ParameterId weight, bias;
};
struct LayerIds {
  LinearIds self_qkv, self_out;
  NormIds self_norm;
  LinearIds cross_q, cross_kv, cross_out;  // decoder of an encoder-decoder only
  NormIds cross_norm;
  LinearIds ffn_in, ffn_out;
  NormIds ffn_norm;
};

// One side of a packed batch: its arrays in device memory and the bounds the plan was made for.
struct PackedSide {
  ops::TokenArrays tokens;
  int64_t max_length = 0;
};

// How a decoder layer attends: a packed training batch and a cached generation step differ only
// here.
struct DecoderAttention {
  // qkv (rows, (heads + 2 kv_heads) * head_size) of layer `layer`, after rotary positions
  std::function<Value(int64_t layer, Value qkv)> self;
  // q (rows, heads * head_size); empty for decoder-only models
  std::function<Value(int64_t layer, Value q)> cross;
};

class Transformer {
 public:
  // Declares all parameters in `store` (canonical names, forward order). The config must be valid.
  Transformer(const ModelConfig& config, ParameterStore& store);
  const ModelConfig& config() const noexcept { return config_; }

  // Rows of the vocabulary's matrices: a multiple of 64, so that products over them are aligned.
  // The rows from vocab on never win, lose or learn.
  static int64_t padded_vocab(int64_t vocab) noexcept { return (vocab + 63) / 64 * 64; }

  // Sinusoid table for `device` (max_positions, d_model) in the wide type; empty unless used. Tapes
  // read it while they run, so it lives with the model.
  void make_tables(const ParameterStore& store);

  // Packed source tokens to memory (source rows, d_model).
  Value encode(Tape& tape, const PackedSide& source) const;
  // Keys and values of the memory for cross-attention of one layer: (source rows, 2 * kv width).
  Value cross_keys_values(Tape& tape, int64_t layer, Value memory) const;
  // Packed target tokens to hidden states (rows, d_model), after the final norm.
  Value decode(Tape& tape, const PackedSide& target, Value memory, const PackedSide* source) const;
  // The same layers with attention given from outside (generation with a cache).
  Value decode_with(Tape& tape, const PackedSide& target, const DecoderAttention& attention) const;
  // (rows, padded vocab)
  Value logits(Tape& tape, Value hidden) const;

  // Floating-point operations of one training step (forward and backward: three times the products
  // of forward) for the tokens and attended pairs given; dropout, norms and softmax are not
  // counted.
  double training_flops(double source_tokens, double target_tokens, double source_pairs,
                        double target_pairs, double cross_pairs) const;

 private:
  struct Residual;  // the residual stream between sublayers
  LayerIds declare_layer(ParameterStore& store, const std::string& prefix, bool cross);
  LinearIds declare_linear(ParameterStore& store, const std::string& name, int64_t out, int64_t in,
                           float scale);
  NormIds declare_norm(ParameterStore& store, const std::string& name);
  Value apply(Tape& tape, const LinearIds& ids, Value x) const;
  ops::NormParameters norm(Tape& tape, const NormIds& ids) const;
  Value embed(Tape& tape, ParameterId table, ParameterId positions, const PackedSide& side) const;
  Value feed_forward(Tape& tape, const LayerIds& layer, Value x) const;
  Value self_projection(Tape& tape, const LayerIds& layer, Value x, const int32_t* positions) const;

  ModelConfig config_;
  ParameterId source_embedding_, target_embedding_, source_positions_, target_positions_, output_;
  std::vector<LayerIds> encoder_, decoder_;
  NormIds encoder_final_, decoder_final_;
  Buffer sinusoids_;
};

}  // namespace saturate::model
