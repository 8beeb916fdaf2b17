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
        layout_(declare.layout),
        mine_(heads_of(c_, layout_)),
        attends_(attending_heads_of(c_, layout_)),
        q_(declare.linear("q", q_width(), c_.d_model, {}, Cut::outputs)),
        kv_(declare.linear("kv", 2 * kv_width(), c_.d_model, {kv_width(), kv_width()},
                           Cut::outputs)),
        out_(declare.output("out", c_.d_model, q_width(), Cut::inputs)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    const Value q = rows_to_heads(tape, layout_, project_in(tape, layout_, q_, x), {mine_.q_width});
    const int64_t first_row = tape.first_row();
    const Value kv = rows_to_heads(tape, layout_, record_memory(tape, batch.memory),
                                   {mine_.kv_width, mine_.kv_width});
    tape.set_rows(first_row, tape.whole_rows());  // again of the target
    const ops::TokenArrays& target = batch.side.tokens;
    return attend(tape, q, kv,
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
    const auto d = static_cast<double>(c_.d_model), q = static_cast<double>(q_width()),
               kv = static_cast<double>(kv_width());
    return work.tokens * 2 * d * q + work.memory_tokens * 2 * d * kv + 2 * q * work.memory_pairs;
  }

 private:
  int64_t q_width() const { return c_.heads * c_.head_size; }
  int64_t kv_width() const { return c_.kv_heads * c_.head_size; }

  // Of this rank's heads, for the rows of all its tensor-parallel ranks.
  Value attend(Tape& tape, Value q, Value kv, ops::AttentionSpec spec) const {
    spec.q = {q, 0};
    spec.k = {kv, 0};
    spec.v = {kv, attends_.kv_width};
    spec.heads = attends_.heads;
    spec.kv_heads = attends_.kv_heads;
    spec.head_size = c_.head_size;
    spec.first_head = attends_.first_head;
    spec.all_heads = c_.heads;
    return project_out(tape, layout_, out_,
                       heads_to_rows(tape, layout_, ops::attention(tape, spec), mine_.q_width));
  }

  const ModelConfig c_;
  const Layout& layout_;
  const HeadPart mine_, attends_;
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
