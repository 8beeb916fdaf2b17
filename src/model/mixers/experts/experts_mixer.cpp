// SPDX-License-Identifier: Apache-2.0
#include "model/mixers/mixer.h"
#include "ops/experts.h"
#include "ops/linear.h"

namespace saturate::model {
namespace {

using Axis = Layout::Axis;

// Feed-forward blocks of which a router gives each token one or a few (docs/guide/mixers.md).
class Experts : public Mixer {
 public:
  explicit Experts(const Declaration& declare)
      : c_(declare.config),
        layout_(declare.layout),
        layer_(declare.layer),
        router_(declare.router("router", c_.experts, c_.d_model)),
        in_(declare.experts("in", c_.experts, c_.gated ? 2 : 1, c_.ffn, c_.d_model)),
        out_(declare.expert_outputs("out", c_.experts, c_.d_model, c_.ffn)) {}

  Value record(Tape& tape, Value x, const MixerBatch& batch) const override {
    return record(tape, x, batch.side.tokens.valid);
  }
  Value record_step(Tape& tape, Value x, const MixerStep&) const override {
    return record(tape, x, nullptr);
  }
  // Where experts have a capacity, prompts that are read together would take it from each other.
  bool reads_prompts() const override { return c_.expert_routing == ExpertRouting::dropless; }

  double products(const MixerWork& work) const override {
    const auto d = static_cast<double>(c_.d_model);
    return work.tokens * d *
           (static_cast<double>(c_.experts) +
            static_cast<double>(c_.experts_per_token * c_.ffn) * (c_.gated ? 3 : 2));
  }

 private:
  Value record(Tape& tape, Value x, const int32_t* valid) const {
    const bool gshard = c_.expert_routing == ExpertRouting::gshard;
    const bool dropless = c_.expert_routing == ExpertRouting::dropless;
    const Value logits = ops::wide_linear(tape, x, tape.wide_parameter(router_));
    const ops::Routing routing =
        ops::route(tape, logits,
                   {.k = c_.experts_per_token,
                    .random_second = gshard,
                    .count_first = gshard,
                    .capacity_factor = dropless ? 0.0 : static_cast<double>(c_.capacity_factor),
                    .balance_loss = c_.router_aux_loss,
                    .z_loss = c_.router_z_loss,
                    .valid = valid,
                    .rows = layout_.ranks({Axis::tp, Axis::cp}),
                    .layer = layer_});
    // The rows of all expert-parallel ranks, of which each computes its part of every expert: as much
    // as the others, however the tokens choose (ADR 80).
    const ops::GroupOfRanks ranks = layout_.ranks({Axis::ep});
    const ops::SortedRows sorted =
        ops::sort_by_expert(tape, ops::gather_rows(tape, ranks, routing.choices), c_.experts);
    const Value rows = ops::dispatch_rows(tape, ops::gather_rows(tape, ranks, x), sorted);
    const Value wide = ops::grouped_linear(tape, rows, tape.parameter(in_), sorted);
    const Value inner = ops::expert_activation(tape, wide, sorted, c_.activation, c_.gated);
    const Value narrow = ops::grouped_linear(tape, inner, tape.parameter(out_), sorted);
    const Value gates = ops::gather_rows(tape, ranks, routing.gates);
    return ops::scatter_sum_rows(tape, ranks, ops::combine_rows(tape, narrow, gates, sorted));
  }

  const ModelConfig c_;
  const Layout& layout_;
  const int64_t layer_;
  const ParameterId router_, in_, out_;
};

}  // namespace

extern const MixerKind kExperts = {
    .name = "experts",
    .prefix = "experts",
    .choosable = false,
    .refusal = nullptr,
    .make = [](const Declaration& declare) -> std::unique_ptr<const Mixer> {
      return std::make_unique<Experts>(declare);
    }};

}  // namespace saturate::model
