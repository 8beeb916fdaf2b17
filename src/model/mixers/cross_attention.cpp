// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/memory_weights.h"

namespace saturate::model {
namespace {

// Softmax attention of every target token to all source tokens. Generation keeps nothing of the
// target; keys and values of the source are made once.
class CrossAttention : public Mixer {
 public:
  explicit CrossAttention(const Declaration& declare)
      : c_(declare.config),
        layout_(declare.layout),
        q_(declare.inputs_of_attention("q", q_width(), {})),
        kv_(declare.inputs_of_attention("kv", 2 * kv_width(), {kv_width(), kv_width()})),
        out_(declare.output("out", c_.d_model, q_width(), Cut::inputs)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    const Value q = project_in(tape, layout_, q_, x);
    const ops::TokenArrays& target = batch.side.tokens;
    return attend(tape, q, record_memory(tape, batch.memory),
                  {.cu_q = target.cu,
                   .cu_k = batch.source->tokens.cu,
                   .sequences = target.sequences,
                   .max_q = batch.side.max_length,
                   .max_k = batch.source->max_length},
                  target.chunk_offsets);
  }

  Value record_step(Tape& tape, Value x, const MixerStep& step) const override {
    const Value q = project(tape, q_, x);
    if (step.memory_weights != nullptr) {
      ops::memory_weights(tape, q,
                          {.heads = c_.heads,
                           .kv_heads = c_.kv_heads,
                           .head_size = c_.head_size,
                           .first_head = step.first_head,
                           .head_count = step.head_count,
                           .max_positions = step.max_memory,
                           .memory = step.memory_state,
                           .starts = step.memory_starts,
                           .lengths = step.memory_lengths,
                           .finished = step.finished,
                           .slot_starts = step.starts,
                           .positions = step.positions,
                           .weights = step.memory_weights,
                           .stride = step.weights_stride,
                           .scale = c_.attention_scale});
    }
    const Value heads = ops::cached_attention(tape, q,
                                              {.heads = c_.heads,
                                               .kv_heads = c_.kv_heads,
                                               .head_size = c_.head_size,
                                               .max_positions = step.max_memory,
                                               .cache = step.memory_state,
                                               .starts = step.memory_starts,
                                               .finished = step.finished,
                                               .lengths = step.memory_lengths,
                                               .scale = c_.attention_scale});
    return project(tape, out_, heads);
  }

  int64_t memory_bytes(DType compute) const override {
    return 2 * kv_width() * static_cast<int64_t>(size_of(compute));
  }

  Value record_memory(Tape& tape, Value memory) const override {
    return project(tape, kv_, memory);
  }

  double products(const MixerWork& work) const override {
    const auto d = static_cast<double>(c_.d_model), q = static_cast<double>(q_width()),
               kv = static_cast<double>(kv_width());
    return work.tokens * 2 * d * q + work.memory_tokens * 2 * d * kv + 2 * q * work.memory_pairs;
  }

 private:
  int64_t q_width() const { return c_.heads * c_.head_size; }
  int64_t kv_width() const { return c_.kv_heads * c_.head_size; }

  // Of this rank's heads, for the rows of all its tensor-parallel ranks.
  Value attend(Tape& tape, Value q, Value kv, const ops::AttentionSpec& spec,
               const int32_t* chunk_offsets = nullptr) const {
    return project_out(tape, layout_, out_,
                       model::attend(tape, c_, layout_, q, kv, spec, chunk_offsets));
  }

  const ModelConfig c_;
  const Layout& layout_;
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
