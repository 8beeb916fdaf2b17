// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"

namespace saturate::model {
namespace {

// Softmax attention of every token to its sequence; generation keeps keys and values of each token.
class SelfAttention : public Mixer {
 public:
  explicit SelfAttention(const Declaration& declare)
      : c_(declare.config),
        q_width_(c_.heads * c_.head_size),
        kv_width_(c_.kv_heads * c_.head_size),
        qkv_(declare.linear("qkv", q_width_ + 2 * kv_width_, c_.d_model,
                            {q_width_, kv_width_, kv_width_})),
        out_(declare.output("out", c_.d_model, q_width_)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    const Value qkv = projection(tape, x, batch.side.tokens.positions);
    const Value heads = ops::attention(tape, {.q = {qkv, 0},
                                              .k = {qkv, q_width_},
                                              .v = {qkv, q_width_ + kv_width_},
                                              .heads = c_.heads,
                                              .kv_heads = c_.kv_heads,
                                              .head_size = c_.head_size,
                                              .cu_q = batch.side.tokens.cu,
                                              .cu_k = batch.side.tokens.cu,
                                              .sequences = batch.side.tokens.sequences,
                                              .max_q = batch.side.max_length,
                                              .max_k = batch.side.max_length,
                                              .causal = batch.causal,
                                              .dropout = c_.attention_dropout});
    return project(tape, out_, heads);
  }

  Value record_step(Tape& tape, Value x, const MixerStep& step) const override {
    const Value qkv = projection(tape, x, step.positions);
    const Value heads = ops::cached_attention(tape, qkv,
                                              {.heads = c_.heads,
                                               .kv_heads = c_.kv_heads,
                                               .head_size = c_.head_size,
                                               .max_positions = step.max_positions,
                                               .cache = step.slot_state,
                                               .positions = step.positions,
                                               .starts = step.starts,
                                               .slots = step.slots,
                                               .finished = step.finished});
    return project(tape, out_, heads);
  }

  DecodeState decode_state(DType compute) const override {
    return {.slot_bytes = 2 * kv_width_ * static_cast<int64_t>(size_of(compute))};
  }

  double products(const MixerWork& work) const override {
    const auto d = static_cast<double>(c_.d_model), q = static_cast<double>(q_width_),
               kv = static_cast<double>(kv_width_);
    return work.tokens * (d * (q + 2 * kv) + q * d) + 2 * q * work.pairs;
  }

 private:
  Value projection(Tape& tape, Value x, const int32_t* positions) const {
    const Value qkv = project(tape, qkv_, x);
    if (c_.positions != PositionKind::rotary) return qkv;
    // q and k lie side by side, so one call rotates the heads of both.
    return ops::rotary(tape, {qkv, 0},
                       {.heads = c_.heads + c_.kv_heads,
                        .head_size = c_.head_size,
                        .positions = positions,
                        .base = c_.rotary_base});
  }

  const ModelConfig c_;
  const int64_t q_width_, kv_width_;
  const LinearIds qkv_, out_;
};

}  // namespace

extern const MixerKind kSelfAttention = {
    .name = "self_attention",
    .prefix = "self",
    .choosable = true,
    .refusal = [](const ModelConfig&) -> const char* { return nullptr; },
    .make = [](const Declaration& declare) -> std::unique_ptr<const Mixer> {
      return std::make_unique<SelfAttention>(declare);
    }};

}  // namespace saturate::model
