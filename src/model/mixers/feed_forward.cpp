// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/activation.h"

namespace saturate::model {
namespace {

// Each token by itself: out(f(in(x))), or out(f(gate(x)) * up(x)).
class FeedForward : public Mixer {
 public:
  explicit FeedForward(const Declaration& declare)
      : c_(declare.config),
        layout_(declare.layout),
        in_(c_.gated ? declare.linear("in", 2 * c_.ffn, c_.d_model, {c_.ffn, c_.ffn}, Cut::outputs)
                     : declare.linear("in", c_.ffn, c_.d_model, {}, Cut::outputs)),
        out_(declare.output("out", c_.d_model, c_.ffn, Cut::inputs)) {}

  Value record(Tape& tape, Value x, const MixerBatch&) const override { return record(tape, x); }
  Value record_step(Tape& tape, Value x, const MixerStep&) const override {
    return record(tape, x);
  }

  double products(const MixerWork& work) const override {
    return work.tokens * static_cast<double>(c_.ffn) * static_cast<double>(c_.d_model) *
           (c_.gated ? 3 : 2);
  }

 private:
  Value record(Tape& tape, Value x) const {
    const int64_t mine = c_.ffn / layout_.extent(Layout::Axis::tp);
    if (!c_.gated) {
      const Value y = project_activated(tape, layout_, in_, x, c_.activation);
      if (y) return project_out(tape, layout_, out_, y);
      if (c_.activation_dropout == 0.0f) {
        const Value z = project_activate_project(tape, layout_, in_, out_, x, c_.activation);
        if (z) return z;
      }
    }
    const Value wide = project_in(tape, layout_, in_, x);
    return project_out(tape, layout_, out_,
                       ops::activation(tape, wide, c_.activation, c_.gated, c_.activation_dropout,
                                       {layout_.coordinate(Layout::Axis::tp) * mine, c_.ffn}));
  }

  const ModelConfig c_;
  const Layout& layout_;
  const LinearIds in_, out_;
};

}  // namespace

extern const MixerKind kFeedForward = {
    .name = "feed_forward",
    .prefix = "ffn",
    .choosable = false,
    .refusal = nullptr,
    .make = [](const Declaration& declare) -> std::unique_ptr<const Mixer> {
      return std::make_unique<FeedForward>(declare);
    }};

}  // namespace saturate::model
