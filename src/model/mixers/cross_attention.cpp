// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/attention.h"

namespace saturate::model {
namespace {

// Softmax attention of every target token to all source tokens. Generation keeps nothing of the
// target; keys and values of the source are made once.
class CrossAttention : public Mixer {
 public:
  explicit CrossAttention(const Declaration& declare)
      : c_(declare.config),
        q_width_(c_.heads * c_.head_size),
        kv_width_(c_.kv_heads * c_.head_size),
        q_(declare.linear("q", q_width_, c_.d_model)),
        kv_(declare.linear("kv", 2 * kv_width_, c_.d_model, {kv_width_, kv_width_})),
        out_(declare.output("out", c_.d_model, q_width_)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    const Value q = project(tape, q_, x);
    const ops::TokenArrays& target = batch.side.tokens;
    return attend(tape, q, record_memory(tape, batch.memory),
                  {.cu_q = target.cu,
                   .cu_k = batch.source->tokens.cu,
                   .sequences = target.sequences,
                   .max_q = batch.side.max_length,
                   .max_k = batch.source->max_length,
                   .dropout = c_.attention_dropout});
  }

  Value record_step(Tape& tape, Value x, const MixerStep& step) const override {
    return attend(tape, project(tape, q_, x), step.memory,
                  {.cu_q = step.cu_rows,
                   .cu_k = step.cu_memory,
                   .sequences = step.sentences,
                   .max_q = step.max_rows,
                   .max_k = step.max_memory});
  }

  Value record_memory(Tape& tape, Value memory) const override {
    return project(tape, kv_, memory);
  }

  double products(const MixerWork& work) const override {
    const auto d = static_cast<double>(c_.d_model), q = static_cast<double>(q_width_),
               kv = static_cast<double>(kv_width_);
    return work.tokens * 2 * d * q + work.memory_tokens * 2 * d * kv + 2 * q * work.memory_pairs;
  }

 private:
  Value attend(Tape& tape, Value q, Value kv, ops::AttentionSpec spec) const {
    spec.q = {q, 0};
    spec.k = {kv, 0};
    spec.v = {kv, kv_width_};
    spec.heads = c_.heads;
    spec.kv_heads = c_.kv_heads;
    spec.head_size = c_.head_size;
    return project(tape, out_, ops::attention(tape, spec));
  }

  const ModelConfig c_;
  const int64_t q_width_, kv_width_;
  const LinearIds q_, kv_, out_;
};

}  // namespace

extern const MixerKind kCrossAttention = {
    .name = "cross_attention",
    .prefix = "cross",
    .choosable = false,
    .refusal = nullptr,
    .make = [](const Declaration& declare) -> std::unique_ptr<const Mixer> {
      return std::make_unique<CrossAttention>(declare);
    }};

}  // namespace saturate::model
