// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "ops/linear.h"

namespace saturate::model {
namespace {

// The residual stream between mixers. Pre-norm: norm(carried + branch) feeds the mixer, the sum is
// carried on. Post-norm: the mixer's output joins, and the norm of the sum is both carried on and
// fed to the next mixer.
struct Residual {
  Value carried, branch;
  bool pre;
  float dropout;

  Value enter(Tape& t, const ops::NormParameters& norm) {
    if (!pre) return carried;
    const ops::ResidualNorm j = ops::residual_norm(t, carried, branch, norm, dropout);
    carried = j.sum;
    branch = {};
    return j.y;
  }
  void leave(Tape& t, Value output, const ops::NormParameters& norm) {
    if (pre) {
      branch = output;
    } else {
      carried = ops::residual_norm(t, carried, output, norm, dropout).y;
    }
  }
};

}  // namespace

ops::NormParameters Transformer::norm(Tape& tape, const NormIds& ids) const {
  return {.kind = config_.norm,
          .weight = tape.wide_parameter(ids.weight),
          .bias = ids.bias.index >= 0 ? tape.wide_parameter(ids.bias) : Value{},
          .eps = config_.norm_eps};
}

Value Transformer::embed(Tape& tape, const LayerStack& stack, const PackedSide& side) const {
  Value position_table;
  if (stack.positions.index >= 0) {
    position_table = tape.wide_parameter(stack.positions);
  } else if (sinusoids_.data()) {
    position_table = tape.external("sinusoids", tape.wide_type(), config_.max_positions,
                                   config_.d_model, sinusoids_.data());
  }
  const float scale =
      config_.scale_embedding ? std::sqrt(static_cast<float>(config_.d_model)) : 1.0f;
  const int64_t rows = side.tokens.rows, parts = layout_->row_parts();
  if (rows % parts != 0) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{} rows of a micro-batch are cut over tp x cp = {} ranks, which do not "
                    "divide them: make batch.source_tokens and batch.target_tokens "
                    "multiples of {}",
                    rows, parts, std::lcm(int64_t{8}, parts)));
  }
  const int64_t own = rows / parts, first = layout_->row_part() * own;
  tape.set_rows(first, rows);
  return ops::embedding(tape, {.tokens = side.tokens,
                               .table = tape.parameter(stack.embedding),
                               .positions_table = position_table,
                               .scale = scale,
                               .dropout = config_.dropout,
                               .first_row = first,
                               .rows = own,
                               .vocabulary = layout_->ranks({Layout::Axis::tp})});
}

Value Transformer::run(Tape& tape, const LayerStack& stack, const PackedSide& side,
                       const RecordMixer& record) const {
  tape.layer(stack.place, 0, 0);
  Residual stream{.carried = embed(tape, stack, side),
                  .branch = {},
                  .pre = config_.norm_position == NormPosition::pre,
                  .dropout = config_.dropout};
  for (int64_t i = 0; i < std::ssize(stack.layers); ++i) {
    const std::vector<Sublayer>& layer = stack.layers[static_cast<size_t>(i)];
    tape.begin_region();
    for (int64_t j = 0; j < std::ssize(layer); ++j) {
      tape.layer(stack.place, i, j);
      const Sublayer& s = layer[static_cast<size_t>(j)];
      const ops::NormParameters n = norm(tape, s.norm);
      stream.leave(tape, record(*s.mixer, stream.enter(tape, n)), n);
    }
    tape.end_region();
  }
  if (stack.final_norm.weight.index < 0) return stream.carried;
  tape.layer(stack.place, std::ssize(stack.layers), 0);
  return ops::residual_norm(tape, stream.carried, stream.branch, norm(tape, stack.final_norm),
                            stream.dropout)
      .y;
}

Value Transformer::encode(Tape& tape, const PackedSide& source) const {
  return run(tape, encoder_, source,
             [&](const Mixer& m, Value x) { return m.record(tape, x, {.side = source}); });
}

Value Transformer::decode(Tape& tape, const PackedSide& target, Value memory,
                          const PackedSide* source) const {
  // Gathered once for all layers, so that its gradient is summed over the ranks once.
  if (memory) memory = gather_rows(tape, *layout_, memory);
  const MixerBatch batch{.side = target, .causal = true, .memory = memory, .source = source};
  return run(tape, decoder_, target,
             [&](const Mixer& m, Value x) { return m.record(tape, x, batch); });
}

Value Transformer::decode_step(Tape& tape, const PackedSide& target,
                               std::span<const MixerStep> steps) const {
  size_t next = 0;
  return run(tape, decoder_, target,
             [&](const Mixer& m, Value x) { return m.record_step(tape, x, steps[next++]); });
}

Value Transformer::logits(Tape& tape, Value hidden) const {
  return ops::linear(tape, gather_rows(tape, *layout_, hidden),
                     tape.parameter(output_.index >= 0 ? output_ : decoder_.embedding));
}

std::vector<const Mixer*> Transformer::decoder_mixers() const {
  std::vector<const Mixer*> mixers;
  for (const std::vector<Sublayer>& layer : decoder_.layers) {
    for (const Sublayer& s : layer) mixers.push_back(s.mixer.get());
  }
  return mixers;
}

double Transformer::training_flops(double source_tokens, double target_tokens, double source_pairs,
                                   double target_pairs, double cross_pairs) const {
  const auto products = [](const LayerStack& stack, const MixerWork& work) {
    double sum = 0;
    for (const std::vector<Sublayer>& layer : stack.layers) {
      for (const Sublayer& s : layer) sum += s.mixer->products(work);
    }
    return sum;
  };
  const double forward =
      products(encoder_, {.tokens = source_tokens, .pairs = source_pairs}) +
      products(decoder_, {.tokens = target_tokens,
                          .pairs = target_pairs,
                          .memory_tokens = source_tokens,
                          .memory_pairs = cross_pairs}) +
      target_tokens * static_cast<double>(config_.vocab_target * config_.d_model);
  return 3 * 2 * forward;
}

}  // namespace saturate::model
