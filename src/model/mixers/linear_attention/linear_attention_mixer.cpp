// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/linear_attention/linear_attention.h"
#include "model/mixers/mixer.h"

namespace saturate::model {
namespace {

// o of packed rows, with its gradient.
Value record_packed(Tape& tape, Value qkv, const ops::TokenArrays& tokens, int64_t heads,
                    int64_t head_size) {
  const Tape::Info in = tape.info(qkv);
  const Value o = tape.make("linear_attention", in.dtype, in.rows, heads * head_size);
  const Value denominator = tape.make("linear_denominator", tape.wide_type(), heads, in.rows);
  const auto bind = [=](const Run& r) {
    return LinearAttentionArgs{.qkv = r(qkv),
                               .o = r(o),
                               .denominator = r(denominator),
                               .cu = r(tokens.cu),
                               .sequences = tokens.sequences,
                               .rows = in.rows,
                               .heads = heads,
                               .head_size = head_size,
                               .dtype = in.dtype};
  };
  tape.record(
      "linear_attention", {qkv}, {o, denominator},
      [=](const Run& r) { linear_attention_forward(r.ctx, bind(r)); },
      [=](Tape& t) {
        const Value d_o = t.gradient(o);
        const Value d_qkv = t.make("d_linear_attention", in.dtype, in.rows, in.cols);
        t.record("linear_attention_backward", {qkv, o, denominator, d_o}, {d_qkv},
                 [=](const Run& r) {
                   linear_attention_backward(
                       r.ctx, {.forward = bind(r), .d_o = r(d_o), .d_qkv = r(d_qkv)});
                 });
        t.set_gradient(qkv, d_qkv);
      });
  return o;
}

// Generation keeps the state of each head, whatever the length.
class LinearAttention : public Mixer {
 public:
  explicit LinearAttention(const Declaration& declare)
      : layout_(declare.layout),
        heads_(heads_of(declare.config, layout_).heads),
        attends_(attending_heads_of(declare.config, layout_).heads),
        head_size_(declare.config.head_size),
        width_(heads_ * head_size_),
        d_model_(declare.config.d_model),
        all_width_(declare.config.heads * head_size_),
        qkv_(declare.linear("qkv", 3 * all_width_, d_model_, {all_width_, all_width_, all_width_},
                            Cut::outputs)),
        out_(declare.output("out", d_model_, all_width_, Cut::inputs)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    SAT_ASSERT(batch.causal);
    const Value qkv =
        rows_to_heads(tape, layout_, project_in(tape, layout_, qkv_, x), {width_, width_, width_});
    const Value heads = record_packed(tape, qkv, batch.side.tokens, attends_, head_size_);
    return project_out(tape, layout_, out_, heads_to_rows(tape, layout_, heads, width_));
  }

  Value record_step(Tape& tape, Value x, const MixerStep& step) const override {
    const Value qkv = project(tape, qkv_, x);
    const Tape::Info in = tape.info(qkv);
    const Value o = tape.make("linear_attention_step", in.dtype, in.rows, width_);
    LinearAttentionStepArgs args{.state = step.row_state,
                                 .positions = step.positions,
                                 .finished = step.finished,
                                 .rows = in.rows,
                                 .heads = heads_,
                                 .head_size = head_size_,
                                 .dtype = in.dtype};
    tape.record("linear_attention_step", {qkv}, {o}, [=](const Run& r) {
      LinearAttentionStepArgs a = args;
      a.qkv = r(qkv);
      a.o = r(o);
      linear_attention_step(r.ctx, a);
    });
    return project(tape, out_, o);
  }

  bool reads_prompts() const override { return false; }  // its state is made token by token

  DecodeState decode_state(DType compute) const override {
    return {.row_bytes = linear_attention_state_bytes(heads_, head_size_, compute)};
  }

  double products(const MixerWork& work) const override {
    const auto width = static_cast<double>(all_width_);
    return work.tokens * width *
           (4 * static_cast<double>(d_model_) + 2 * static_cast<double>(head_size_));
  }

 private:
  const Layout& layout_;
  const int64_t heads_, attends_, head_size_, width_, d_model_, all_width_;
  const LinearIds qkv_, out_;
};

const char* refusal(const ModelConfig& c) {
  if (c.kind != ModelKind::decoder_only) {
    return "its state cannot follow a beam; use it in decoder-only models, such as the gpt2 "
           "presets";
  }
  if (c.kv_heads != c.heads) return "it has as many key heads as query heads; leave kv_heads out";
  if (c.positions == PositionKind::rotary) {
    return "its features are not rotated; set positions to learned or sinusoidal";
  }
  if (c.attention_dropout > 0.0f) {
    return "it has no attention weights to drop; set attention_dropout to 0";
  }
  return nullptr;
}

}  // namespace

extern const MixerKind kLinearAttention = {
    .name = "linear_attention",
    .prefix = "linear",
    .choosable = true,
    .refusal = refusal,
    .make = [](const Declaration& declare) -> std::unique_ptr<const Mixer> {
      return std::make_unique<LinearAttention>(declare);
    }};

}  // namespace saturate::model
