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
        in_(c_.gated ? declare.linear("in", 2 * c_.ffn, c_.d_model, {c_.ffn, c_.ffn})
                     : declare.linear("in", c_.ffn, c_.d_model)),
        out_(declare.output("out", c_.d_model, c_.ffn)) {}

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
    const Value wide = project(tape, in_, x);
    return project(tape, out_,
                   ops::activation(tape, wide, c_.activation, c_.gated, c_.activation_dropout));
  }

  const ModelConfig c_;
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
