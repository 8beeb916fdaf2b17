// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/attention.h"
#include "ops/cached_attention.h"
#include "ops/inference.h"
#include "ops/store_rows.h"

namespace saturate::model {
namespace {

// Softmax attention of every token to its sequence; generation keeps keys and values of each token.
class SelfAttention : public Mixer {
 public:
  explicit SelfAttention(const Declaration& declare)
      : c_(declare.config),
        layout_(declare.layout),
        mine_(heads_of(c_, layout_)),
        window_(sees_all(c_, declare.layer) ? 0 : c_.window),
        qkv_(declare.inputs_of_attention("qkv", q_width() + 2 * kv_width(),
                                         {q_width(), kv_width(), kv_width()})),
        q_norm_(c_.qk_norm ? declare.head_norm("q_norm") : ParameterId{}),
        k_norm_(c_.qk_norm ? declare.head_norm("k_norm") : ParameterId{}),
        out_(declare.output("out", c_.d_model, q_width(), Cut::inputs)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    return project_out(tape, layout_, out_, attend(tape, queries_and_keys(tape, x, batch), batch));
  }

  Value record_prompt(Tape& tape, Value x, const MixerBatch& batch,
                      const MixerPrompt& prompt) const override {
    const Value qkv = queries_and_keys(tape, x, batch);
    ops::store_rows(tape, qkv, prompt.width, prompt.places, prompt.slot_state);
    if (prompt.ends) return {};
    return project_out(tape, layout_, out_, attend(tape, qkv, batch));
  }

  Value record_step(Tape& tape, Value x, const MixerStep& step) const override {
    const Value qkv = rotated(tape, project(tape, qkv_, x), step.positions);
    const Value heads = ops::cached_attention(tape, qkv,
                                              {.heads = c_.heads,
                                               .kv_heads = c_.kv_heads,
                                               .head_size = c_.head_size,
                                               .max_positions = step.max_positions,
                                               .cache = step.slot_state,
                                               .positions = step.positions,
                                               .starts = step.starts,
                                               .slots = step.slots,
                                               .finished = step.finished,
                                               .scale = c_.attention_scale,
                                               .soft_cap = c_.attention_soft_cap,
                                               .window = window_,
                                               .bias = step.relative_bias});
    return project(tape, out_, heads);
  }

  DecodeState decode_state(DType compute) const override {
    return {.slot_bytes = 2 * mine_.kv_width * static_cast<int64_t>(size_of(compute))};
  }

  double products(const MixerWork& work) const override {
    const auto d = static_cast<double>(c_.d_model), q = static_cast<double>(q_width()),
               kv = static_cast<double>(kv_width());
    return work.tokens * (d * (q + 2 * kv) + q * d) + 2 * q * work.pairs;
  }

 private:
  // `layer` counts the encoder's layers too.
  static bool sees_all(const ModelConfig& c, int64_t layer) {
    return c.full_attention_every > 0 &&
           (layer - c.encoder_layers + 1) % c.full_attention_every == 0;
  }
  int64_t q_width() const { return c_.heads * c_.head_size; }
  int64_t kv_width() const { return c_.kv_heads * c_.head_size; }

  // Both of these: of this rank's heads, for the rows of all its tensor-parallel ranks.
  Value queries_and_keys(Tape& tape, Value x, const MixerBatch& batch) const {
    const Value projected = project_in(tape, layout_, qkv_, x);
    return rotated(tape, projected, batch.side.tokens.positions,
                   tape.row_runs(tape.info(projected).rows));
  }
  Value attend(Tape& tape, Value qkv, const MixerBatch& batch) const {
    const ops::TokenArrays& tokens = batch.side.tokens;
    return model::attend(tape, c_, layout_, qkv, {},
                         {.cu_q = tokens.cu,
                          .cu_k = tokens.cu,
                          .sequences = tokens.sequences,
                          .max_q = batch.side.max_length,
                          .max_k = batch.side.max_length,
                          .causal = batch.causal,
                          .soft_cap = c_.attention_soft_cap,
                          .window = batch.causal ? window_ : 0,
                          .bias = batch.relative_bias},
                         tokens.chunk_offsets);
  }

  // With norms of heads and rotary positions, where the model has them.
  Value rotated(Tape& tape, Value qkv, const int32_t* positions,
                std::vector<RowRun> rows = {}) const {
    if (q_norm_.index >= 0) {
      qkv = ops::head_norm(tape, {qkv, 0}, mine_.heads, c_.head_size, tape.wide_parameter(q_norm_),
                           c_.norm_eps);
      qkv = ops::head_norm(tape, {qkv, mine_.q_width}, mine_.kv_heads, c_.head_size,
                           tape.wide_parameter(k_norm_), c_.norm_eps);
    }
    if (c_.positions != PositionKind::rotary) return qkv;
    // q and k lie side by side, so one call rotates the heads of both.
    return ops::rotary(tape, {qkv, 0},
                       {.heads = mine_.heads + mine_.kv_heads,
                        .head_size = c_.head_size,
                        .positions = positions,
                        .runs = std::move(rows),
                        .base = c_.rotary_base,
                        .factor = c_.rotary_factor,
                        .low = c_.rotary_low,
                        .high = c_.rotary_high,
                        .original = c_.rotary_original});
  }

  const ModelConfig c_;
  const Layout& layout_;
  const HeadPart mine_;
  const int64_t window_;
  const LinearIds qkv_;
  const ParameterId q_norm_, k_norm_;
  const LinearIds out_;
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
