// SPDX-License-Identifier: Apache-2.0
#include "model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/inference.h"
#include "ops/linear_cross_entropy.h"

namespace saturate::model {
namespace {

// The residual stream between mixers. Pre-norm and sandwich: norm(carried + branch) feeds the mixer,
// the sum is carried on. Post-norm: the mixer's output joins, and the norm of the sum is both carried on and
// fed to the next mixer.
struct Residual {
  Value carried, branch;
  bool post;
  float dropout;

  Value enter(Tape& t, const ops::NormParameters& norm) {
    if (post) return carried;
    const ops::ResidualNorm j = ops::residual_norm(t, carried, branch, norm, dropout);
    carried = j.sum;
    branch = {};
    return j.y;
  }
  void leave(Tape& t, Value output, const ops::NormParameters& norm) {
    if (!post) {
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
  const int64_t own = begin_rows(tape, side);
  return ops::embedding(tape, {.tokens = side.tokens,
                               .table = tape.parameter(stack.embedding),
                               .positions_table = position_table,
                               .scale = scale,
                               .dropout = config_.dropout,
                               .first_row = tape.first_row(),
                               .rows = own,
                               .vocabulary = layout_->ranks({Layout::Axis::tp})});
}

int64_t Transformer::begin_rows(Tape& tape, const PackedSide& side) const {
  const int64_t rows = side.tokens.rows, parts = layout_->row_parts();
  const int64_t chunks = row_chunks(config_, *layout_);
  if (rows % parts != 0 || (chunks > 0 && rows % chunks != 0)) {
    throw Error(
        Errc::invalid_argument, "model",
        fmt::format("{} rows of a micro-batch are cut over tp x cp = {} ranks, which do not "
                    "divide them: make batch.source_tokens and batch.target_tokens "
                    "multiples of {}",
                    rows, parts, std::lcm(int64_t{8}, parts)));
  }
  const int64_t own = rows / parts;
  tape.set_chunks(chunks);
  tape.set_rows(layout_->row_part() * own, rows);
  return own;
}

Transformer::State Transformer::run(Tape& tape, const LayerStack& stack, const Part& part,
                                    State state, const PackedSide& side,
                                    const RecordMixer& record) const {
  begin_rows(tape, side);
  if (part.embeds) {
    tape.layer(stack.place, 0, 0);
    state.stream = embed(tape, stack, side);
    if (stack.embedding_norm.weight.index >= 0) {
      state.stream =
          ops::residual_norm(tape, state.stream, {}, norm(tape, stack.embedding_norm), 0.0f).y;
    }
  }
  Residual stream{.carried = state.stream,
                  .branch = state.branch,
                  .post = config_.norm_position == NormPosition::post,
                  .dropout = config_.dropout};
  for (int64_t i = part.first_layer; i < part.last_layer; ++i) {
    const std::vector<Sublayer>& layer = stack.layers[static_cast<size_t>(i)];
    tape.begin_region();
    for (int64_t j = 0; j < std::ssize(layer); ++j) {
      tape.layer(stack.place, i, j);
      const Sublayer& s = layer[static_cast<size_t>(j)];
      const ops::NormParameters n = norm(tape, s.norm);
      Value output = record(*s.mixer, stream.enter(tape, n));
      if (!output) {
        tape.end_region();
        return {};
      }
      if (s.after.weight.index >= 0)
        output = ops::residual_norm(tape, output, {}, norm(tape, s.after), 0.0f).y;
      stream.leave(tape, output, n);
    }
    tape.end_region();
  }
  state.stream = stream.carried;
  state.branch = stream.branch;
  if (!part.ends || !config_.final_norm) return state;
  tape.layer(stack.place, std::ssize(stack.layers), 0);
  state.stream = ops::residual_norm(tape, stream.carried, stream.branch,
                                    norm(tape, stack.final_norm), stream.dropout)
                     .y;
  state.branch = {};
  return state;
}

Transformer::Part Transformer::all_of(const LayerStack& stack) const {
  return {.last_layer = std::ssize(stack.layers)};
}

Transformer::Part Transformer::part_of(const LayerStack& stack, int64_t first,
                                       ItemRange range) const {
  const int64_t layers = std::ssize(stack.layers);
  return {.embeds = range.has(first),
          .first_layer = std::clamp(range.first - first - 1, int64_t{0}, layers),
          .last_layer = std::clamp(range.last - first - 1, int64_t{0}, layers),
          .ends = range.has(first + 1 + layers)};
}

Transformer::State Transformer::record(Tape& tape, ItemRange range, State state,
                                       const PackedSide& source, const PackedSide& target) const {
  const Items items(config_);
  if (items.encodes()) {
    const Part part = part_of(encoder_, 0, range);
    if (!part.empty()) {
      const MixerBatch batch = encoder_batch(tape, source);
      state = run(tape, encoder_, part, state, source,
                  [&](const Mixer& m, Value x) { return m.record(tape, x, batch); });
    }
    if (part.ends) state = {.stream = {}, .branch = {}, .memory = state.stream};
  }
  const Part part = part_of(decoder_, items.target_embedding, range);
  if (!part.empty()) {
    // Gathered once for all layers here, so that its gradient is summed over the ranks once. What
    // passes on is this rank's rows.
    Value memory;
    if (state.memory && part.first_layer < part.last_layer) {
      begin_rows(tape, source);
      memory = gather_rows(tape, *layout_, state.memory);
    }
    const MixerBatch batch = decoder_batch(tape, target, memory, &source);
    state = run(tape, decoder_, part, state, target,
                [&](const Mixer& m, Value x) { return m.record(tape, x, batch); });
  }
  if (range.last >= items.decoder_norm) state.memory = {};  // no layer is left that reads it
  if (range.has(items.output)) begin_rows(tape, target);
  return state;
}

MixerBatch Transformer::encoder_batch(Tape& tape, const PackedSide& source) const {
  const int64_t longest = source.max_length;
  return {.side = source, .relative_bias = relative_bias(tape, encoder_, longest, longest, 1)};
}

MixerBatch Transformer::decoder_batch(Tape& tape, const PackedSide& target, Value memory,
                                      const PackedSide* source) const {
  const int64_t longest = target.max_length;
  return {.side = target,
          .causal = true,
          .relative_bias = relative_bias(tape, decoder_, longest, longest, 1),
          .memory = memory,
          .source = source};
}

Value Transformer::relative_bias(Tape& tape, const LayerStack& stack, int64_t queries, int64_t keys,
                                 int sign) const {
  if (stack.relative_bias.index < 0) return {};
  const Buffer& buckets = stack.place == Stack::encoder ? encoder_buckets_ : decoder_buckets_;
  return ops::relative_bias(tape, tape.wide_parameter(stack.relative_bias),
                            buckets.as<int32_t>() + config_.max_positions, queries, keys, sign);
}

Value Transformer::encode(Tape& tape, const PackedSide& source) const {
  const MixerBatch batch = encoder_batch(tape, source);
  return run(tape, encoder_, all_of(encoder_), {}, source,
             [&](const Mixer& m, Value x) { return m.record(tape, x, batch); })
      .stream;
}

Value Transformer::decode(Tape& tape, const PackedSide& target, Value memory,
                          const PackedSide* source) const {
  // Gathered once for all layers, so that its gradient is summed over the ranks once.
  if (memory) memory = gather_rows(tape, *layout_, memory);
  const MixerBatch batch = decoder_batch(tape, target, memory, source);
  return run(tape, decoder_, all_of(decoder_), {}, target,
             [&](const Mixer& m, Value x) { return m.record(tape, x, batch); })
      .stream;
}

Value Transformer::decode_step(Tape& tape, const PackedSide& target,
                               std::span<const MixerStep> steps) const {
  size_t next = 0;
  const Value bias = relative_bias(tape, decoder_, 1, steps.front().max_positions, -1);
  return run(tape, decoder_, all_of(decoder_), {}, target,
             [&](const Mixer& m, Value x) {
               MixerStep step = steps[next++];
               step.relative_bias = bias;
               return m.record_step(tape, x, step);
             })
      .stream;
}

void Transformer::read_prompts(Tape& tape, const PackedSide& side,
                               std::span<const MixerPrompt> prompts) const {
  const std::vector<const Mixer*> mixers = decoder_mixers();
  const auto keeps = [&](const Mixer* m) {
    return m->decode_state(tape.compute_type()).slot_bytes > 0;
  };
  const auto kept = std::count_if(mixers.begin(), mixers.end(), keeps);
  int64_t met = 0;
  size_t next = 0;
  const MixerBatch batch{.side = side, .causal = true};
  run(tape, decoder_, all_of(decoder_), {}, side, [&](const Mixer& m, Value x) {
    MixerPrompt prompt = prompts[next++];
    if (keeps(&m)) prompt.ends = ++met == kept;
    return m.record_prompt(tape, x, batch, prompt);
  });
}

Value Transformer::logits(Tape& tape, Value hidden) const {
  const Value y =
      project_in(tape, *layout_, {.weight = output_weight(), .bias = output_bias_}, hidden);
  return config_.output_soft_cap > 0 ? ops::soft_cap(tape, y, config_.output_soft_cap) : y;
}

bool Transformer::record_output_loss(Tape& tape, Value hidden, const ops::LossSpec& loss) const {
  if (config_.output_soft_cap > 0 || layout_->extent(Layout::Axis::tp) > 1) return false;
  if (!ops::linear_cross_entropy_pays(tape, hidden, output_weight(), output_bias_, loss))
    return false;
  const Value bias = output_bias_.index >= 0 ? tape.parameter(output_bias_) : Value{};
  ops::linear_cross_entropy(tape, hidden, tape.parameter(output_weight()), bias, loss);
  return true;
}

std::vector<const Mixer*> Transformer::decoder_mixers() const {
  std::vector<const Mixer*> mixers;
  for (const std::vector<Sublayer>& layer : decoder_.layers) {
    for (const Sublayer& s : layer) mixers.push_back(s.mixer.get());
  }
  return mixers;
}

std::vector<double> Transformer::item_costs(double source_tokens, double target_tokens,
                                            double source_pairs, double target_pairs,
                                            double cross_pairs) const {
  // Operations that a GPU could make while it moves a byte: 600 TFLOP/s of products in bf16 and
  // 4 TB/s on an H200, whose ratio is about that of other cards.
  constexpr double kPerByte = 150;
  const auto width = static_cast<double>(config_.d_model);
  const Items items(config_);
  std::vector<double> costs;
  const auto stack = [&](const LayerStack& s, const MixerWork& work) {
    // Lookup and its gradient, which adds to wide rows; a norm and its gradient.
    costs.push_back(kPerByte * 14 * work.tokens * width);
    for (const std::vector<Sublayer>& layer : s.layers) {
      double products = 0;
      for (const Sublayer& sub : layer) products += sub.mixer->products(work);
      costs.push_back(3 * 2 * products);
    }
    costs.push_back(kPerByte * 10 * work.tokens * width);
  };
  if (items.encodes()) stack(encoder_, {.tokens = source_tokens, .pairs = source_pairs});
  stack(decoder_, {.tokens = target_tokens,
                   .pairs = target_pairs,
                   .memory_tokens = source_tokens,
                   .memory_pairs = cross_pairs});
  // The logits are written, read and overwritten by their gradient, which two products read.
  const double logits = target_tokens * static_cast<double>(padded_vocab(config_.vocab_target));
  costs.push_back(3 * 2 * logits * width + kPerByte * 5 * 2 * logits);
  return costs;
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
