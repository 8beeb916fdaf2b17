// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <cmath>

#include "base/error.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/linear.h"

namespace saturate::model {

// Pre-norm: norm(carried + branch) feeds the sublayer, the sum is carried on. Post-norm: the
// sublayer's output joins, and the norm of the sum is both carried on and fed to the next sublayer.
struct Transformer::Residual {
  Value carried, branch;

  Value enter(Tape& t, const ops::NormParameters& norm, bool pre, float dropout) {
    if (!pre) return carried;
    const ops::ResidualNorm j = ops::residual_norm(t, carried, branch, norm, dropout);
    carried = j.sum;
    branch = {};
    return j.y;
  }
  void leave(Tape& t, Value output, const ops::NormParameters& norm, bool pre, float dropout) {
    if (pre) {
      branch = output;
    } else {
      carried = ops::residual_norm(t, carried, output, norm, dropout).y;
    }
  }
};

Value Transformer::apply(Tape& tape, const LinearIds& ids, Value x) const {
  return ops::linear(tape, x, tape.parameter(ids.weight),
                     ids.bias.index >= 0 ? tape.parameter(ids.bias) : Value{});
}

ops::NormParameters Transformer::norm(Tape& tape, const NormIds& ids) const {
  return {.kind = config_.norm,
          .weight = tape.wide_parameter(ids.weight),
          .bias = ids.bias.index >= 0 ? tape.wide_parameter(ids.bias) : Value{},
          .eps = config_.norm_eps};
}

Value Transformer::embed(Tape& tape, ParameterId table, ParameterId positions,
                         const PackedSide& side) const {
  Value position_table;
  if (positions.index >= 0) {
    position_table = tape.wide_parameter(positions);
  } else if (sinusoids_.data()) {
    position_table = tape.external("sinusoids", tape.wide_type(), config_.max_positions,
                                   config_.d_model, sinusoids_.data());
  }
  const float scale =
      config_.scale_embedding ? std::sqrt(static_cast<float>(config_.d_model)) : 1.0f;
  return ops::embedding(tape, side.tokens, tape.parameter(table), position_table, scale,
                        config_.dropout);
}

Value Transformer::feed_forward(Tape& tape, const LayerIds& layer, Value x) const {
  const Value wide = apply(tape, layer.ffn_in, x);
  const Value active =
      ops::activation(tape, wide, config_.activation, config_.gated, config_.activation_dropout);
  return apply(tape, layer.ffn_out, active);
}

Value Transformer::self_projection(Tape& tape, const LayerIds& layer, Value x,
                                   const int32_t* positions) const {
  const Value qkv = apply(tape, layer.self_qkv, x);
  if (config_.positions != PositionKind::rotary) return qkv;
  // q and k lie side by side, so one call rotates the heads of both.
  return ops::rotary(tape, {qkv, 0},
                     {.heads = config_.heads + config_.kv_heads,
                      .head_size = config_.head_size,
                      .positions = positions,
                      .base = config_.rotary_base});
}

Value Transformer::encode(Tape& tape, const PackedSide& source) const {
  const bool pre = config_.norm_position == NormPosition::pre;
  const int64_t q_width = config_.heads * config_.head_size;
  const int64_t kv_width = config_.kv_heads * config_.head_size;
  tape.layer(Stack::encoder, 0, 0);
  Residual s{embed(tape, source_embedding_, source_positions_, source), {}};
  for (size_t i = 0; i < encoder_.size(); ++i) {
    const LayerIds& layer = encoder_[i];
    const auto index = static_cast<int64_t>(i);
    tape.layer(Stack::encoder, index, 0);
    Value x = s.enter(tape, norm(tape, layer.self_norm), pre, config_.dropout);
    const Value qkv = self_projection(tape, layer, x, source.tokens.positions);
    const Value heads = ops::attention(tape, {.q = {qkv, 0},
                                              .k = {qkv, q_width},
                                              .v = {qkv, q_width + kv_width},
                                              .heads = config_.heads,
                                              .kv_heads = config_.kv_heads,
                                              .head_size = config_.head_size,
                                              .cu_q = source.tokens.cu,
                                              .cu_k = source.tokens.cu,
                                              .sequences = source.tokens.sequences,
                                              .max_q = source.max_length,
                                              .max_k = source.max_length,
                                              .dropout = config_.attention_dropout});
    s.leave(tape, apply(tape, layer.self_out, heads), norm(tape, layer.self_norm), pre,
            config_.dropout);
    tape.layer(Stack::encoder, index, 1);
    x = s.enter(tape, norm(tape, layer.ffn_norm), pre, config_.dropout);
    s.leave(tape, feed_forward(tape, layer, x), norm(tape, layer.ffn_norm), pre, config_.dropout);
  }
  if (encoder_final_.weight.index < 0) return s.carried;
  tape.layer(Stack::encoder, std::ssize(encoder_), 0);
  return ops::residual_norm(tape, s.carried, s.branch, norm(tape, encoder_final_), config_.dropout)
      .y;
}

Value Transformer::cross_keys_values(Tape& tape, int64_t layer, Value memory) const {
  return apply(tape, decoder_[static_cast<size_t>(layer)].cross_kv, memory);
}

Value Transformer::decode(Tape& tape, const PackedSide& target, Value memory,
                          const PackedSide* source) const {
  const int64_t q_width = config_.heads * config_.head_size;
  const int64_t kv_width = config_.kv_heads * config_.head_size;
  ops::AttentionSpec spec{.heads = config_.heads,
                          .kv_heads = config_.kv_heads,
                          .head_size = config_.head_size,
                          .cu_q = target.tokens.cu,
                          .sequences = target.tokens.sequences,
                          .max_q = target.max_length,
                          .dropout = config_.attention_dropout};
  DecoderAttention attention;
  attention.self = [&, spec](int64_t, Value qkv) mutable {
    spec.q = {qkv, 0};
    spec.k = {qkv, q_width};
    spec.v = {qkv, q_width + kv_width};
    spec.cu_k = target.tokens.cu;
    spec.max_k = target.max_length;
    spec.causal = true;
    return ops::attention(tape, spec);
  };
  if (memory) {
    attention.cross = [&, spec](int64_t layer, Value q) mutable {
      const Value kv = cross_keys_values(tape, layer, memory);
      spec.q = {q, 0};
      spec.k = {kv, 0};
      spec.v = {kv, kv_width};
      spec.cu_k = source->tokens.cu;
      spec.max_k = source->max_length;
      return ops::attention(tape, spec);
    };
  }
  return decode_with(tape, target, attention);
}

Value Transformer::decode_with(Tape& tape, const PackedSide& target,
                               const DecoderAttention& attention) const {
  const bool pre = config_.norm_position == NormPosition::pre;
  const float drop = config_.dropout;
  tape.layer(Stack::decoder, 0, 0);
  Residual s{embed(tape, target_embedding_, target_positions_, target), {}};
  for (size_t i = 0; i < decoder_.size(); ++i) {
    const LayerIds& layer = decoder_[i];
    const auto index = static_cast<int64_t>(i);
    tape.layer(Stack::decoder, index, 0);
    Value x = s.enter(tape, norm(tape, layer.self_norm), pre, drop);
    const Value qkv = self_projection(tape, layer, x, target.tokens.positions);
    const Value self = attention.self(index, qkv);
    s.leave(tape, apply(tape, layer.self_out, self), norm(tape, layer.self_norm), pre, drop);
    if (attention.cross) {
      tape.layer(Stack::decoder, index, 1);
      x = s.enter(tape, norm(tape, layer.cross_norm), pre, drop);
      const Value cross = attention.cross(index, apply(tape, layer.cross_q, x));
      s.leave(tape, apply(tape, layer.cross_out, cross), norm(tape, layer.cross_norm), pre, drop);
    }
    tape.layer(Stack::decoder, index, 2);
    x = s.enter(tape, norm(tape, layer.ffn_norm), pre, drop);
    s.leave(tape, feed_forward(tape, layer, x), norm(tape, layer.ffn_norm), pre, drop);
  }
  if (decoder_final_.weight.index < 0) return s.carried;
  tape.layer(Stack::decoder, std::ssize(decoder_), 0);
  return ops::residual_norm(tape, s.carried, s.branch, norm(tape, decoder_final_), drop).y;
}

Value Transformer::logits(Tape& tape, Value hidden) const {
  return ops::linear(tape, hidden,
                     tape.parameter(output_.index >= 0 ? output_ : target_embedding_));
}

double Transformer::training_flops(double source_tokens, double target_tokens, double source_pairs,
                                   double target_pairs, double cross_pairs) const {
  const auto d = static_cast<double>(config_.d_model);
  const auto q = static_cast<double>(config_.heads * config_.head_size);
  const auto kv = static_cast<double>(config_.kv_heads * config_.head_size);
  const double ffn = static_cast<double>(config_.ffn) * d * (config_.gated ? 3 : 2);
  const double self = d * (q + 2 * kv) + q * d;
  const auto enc = static_cast<double>(encoder_.size()), dec = static_cast<double>(decoder_.size());
  const double vocab = static_cast<double>(config_.vocab_target) * d;
  double products =
      source_tokens * enc * (self + ffn) + target_tokens * (dec * (self + ffn) + vocab);
  if (!encoder_.empty()) {
    products += dec * (target_tokens * 2 * d * q + source_tokens * 2 * d * kv);  // cross-attention
  }
  const double scores =
      2 * q *
      (enc * source_pairs + dec * target_pairs + (encoder_.empty() ? 0.0 : dec * cross_pairs));
  return 3 * 2 * (products + scores);
}

}  // namespace saturate::model
