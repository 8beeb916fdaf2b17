// SPDX-License-Identifier: Apache-2.0
// Declaration of a Transformer's parameters: names, shapes and how they start. Those of a layer are
// its mixers'.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "model/transformer.h"

namespace saturate::model {
namespace {

constexpr const char* kOutputBias = "output.bias";

bool shares(const ModelConfig& config) {
  return config.kind == ModelKind::encoder_decoder && config.shared_embeddings;
}

}  // namespace

std::string source_embedding_name(const ModelConfig& config) {
  return shares(config) ? "shared.weight" : "encoder.embed.weight";
}
std::string target_embedding_name(const ModelConfig& config) {
  return shares(config) ? "shared.weight" : "decoder.embed.weight";
}

namespace {

// Heads and columns are cut as wholes.
void require_divisible(const ModelConfig& config, const Layout& layout) {
  const auto require = [&](Layout::Axis axis, const char* name, int64_t value) {
    const int ranks = layout.extent(axis);
    if (value % ranks == 0) return;
    throw Error(Errc::invalid_argument, "model",
                fmt::format("{0} is {1} and {2} {3}: {4} parallel gives every rank as many {2}; "
                            "choose {0} among the divisors of {3}",
                            parallel::name_of(axis), ranks, name, value,
                            axis == Layout::Axis::tp ? "tensor" : "expert"));
  };
  require(Layout::Axis::tp, "heads", config.heads);
  require(Layout::Axis::tp, "kv_heads", config.kv_heads);
  require(Layout::Axis::tp, "ffn", config.ffn);
  require(Layout::Axis::ep, "ffn", config.ffn);
}

}  // namespace

Transformer::LayerStack Transformer::declare_stack(ParameterStore& store, Stack place,
                                                   ParameterId embedding) const {
  const bool encoder = place == Stack::encoder;
  const std::string side = encoder ? "encoder" : "decoder";
  const int64_t first = encoder ? 0 : Items(config_).target_embedding;
  LayerStack stack;
  stack.place = place;
  stack.embedding = embedding;
  if (config_.positions == PositionKind::learned) {
    store.hold(stages_.holds(first));
    stack.positions = add_part(store, *layout_,
                               {.name = side + ".positions.weight",
                                .rows = config_.max_positions,
                                .cols = config_.d_model,
                                .init = Init::normal,
                                .init_scale = 0.02f,
                                .decay = true,
                                .wide = true});
  }
  if (config_.embedding_norm) {
    store.hold(stages_.holds(first));
    stack.embedding_norm = Declaration(config_, store, side + ".embed", *layout_).norm();
  }
  if (config_.positions == PositionKind::relative) {
    // All layers read it, so all stages hold it.
    store.hold(true);
    stack.relative_bias = add_part(store, *layout_,
                                   {.name = side + ".relative_bias.weight",
                                    .rows = config_.relative_buckets,
                                    .cols = config_.heads,
                                    .init = Init::normal,
                                    .init_scale = 0.02f,
                                    .wide = true});
  }
  const int64_t layers = encoder ? config_.encoder_layers : config_.decoder_layers;
  for (int64_t i = 0; i < layers; ++i) {
    store.hold(stages_.holds(first + 1 + i));
    std::vector<Sublayer>& layer = stack.layers.emplace_back();
    store.begin_unit();
    for (const MixerKind* mixer : layer_mixers(config_, place, i)) {
      Declaration declare(config_, store,
                          side + ".layers." + std::to_string(i) + "." + mixer->prefix, *layout_);
      declare.layer = encoder ? i : config_.encoder_layers + i;
      const NormIds norm = declare.norm();
      NormIds after;
      if (config_.norm_position == NormPosition::sandwich) after = declare.norm("_after_norm");
      layer.push_back({norm, after, mixer->make(declare)});
    }
  }
  store.hold(stages_.holds(first + 1 + layers));
  store.begin_unit();
  if (config_.final_norm)
    stack.final_norm = Declaration(config_, store, side + ".final", *layout_).norm();
  return stack;
}

// `users`: the items that look it up or multiply by it.
ParameterId Transformer::declare_table(ParameterStore& store, const std::string& name,
                                       int64_t vocab, int64_t zero_row,
                                       std::vector<int64_t> users) {
  const bool lm = config_.kind == ModelKind::decoder_only;
  const float std = lm ? 0.02f : 1.0f / std::sqrt(static_cast<float>(config_.d_model));
  std::set<int64_t> chunks;
  std::set<int32_t> holders;
  for (const int64_t item : users) {
    const int64_t chunk = stages_.chunk_of(item);
    chunks.insert(chunk);
    if (stages_.chunks() > 0) holders.insert(stages_.rank_of[static_cast<size_t>(chunk)]);
  }
  if (chunks.size() == 1) holders.clear();
  const std::vector<int32_t> shared(holders.begin(), holders.end());
  if (!shared.empty()) shared_tables_.push_back(shared);
  store.hold(std::ranges::any_of(users, [&](int64_t item) { return stages_.holds(item); }));
  store.begin_unit();
  const int64_t rows = padded_vocab(vocab, layout_->extent(Layout::Axis::tp));
  return add_part(store, *layout_,
                  {.name = name,
                   .rows = rows,
                   .cols = config_.d_model,
                   .init = Init::normal,
                   .init_scale = std,
                   .decay = true,
                   .looked_up = true,
                   .zero_row = zero_row,
                   .padding_rows = rows - vocab,
                   .holders = shared},
                  0);
}

namespace {

// Beside adapters nothing trains.
void freeze_base(const Lora& lora, ParameterStore& store) {
  std::set<std::string> adapters;
  for (const LoraLinear& l : lora.linears) {
    adapters.insert(l.a_name());
    for (size_t i = 0; i < l.parts.size(); ++i) adapters.insert(l.b_name(i));
  }
  std::vector<ParameterId> base;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    if (!adapters.contains(store.specs()[i].name)) base.push_back({static_cast<int32_t>(i)});
  }
  store.freeze(base, true);
  if (lora.quantized_base) store.quantize_frozen();
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, ParameterStore& store, const Layout& layout,
                         Stages stages)
    : config_(config), layout_(&layout), stages_(std::move(stages)) {
  require_divisible(config, layout);
  const bool lm = config_.kind == ModelKind::decoder_only;
  const Items items(config_);
  // Marian starts the decoder from a zero embedding, and transformers from the row of <pad>, which
  // it keeps at zero: so do we, or what we train would be another model there.
  const int64_t start_row = !lm && config_.decoder_start_id == config_.pad_id ? config_.pad_id : -1;
  ParameterId source, target;
  if (!lm && !shares(config_))
    source = declare_table(store, source_embedding_name(config_), config_.vocab_source, -1,
                           {int64_t{0}});
  std::vector<int64_t> users{items.target_embedding};
  if (config_.tied_output) users.push_back(items.output);
  if (shares(config_)) users.push_back(0);
  target =
      declare_table(store, target_embedding_name(config_), config_.vocab_target, start_row, users);
  if (shares(config_)) source = target;
  if (!lm) encoder_ = declare_stack(store, Stack::encoder, source);
  decoder_ = declare_stack(store, Stack::decoder, target);
  if (!config_.tied_output)
    output_ = declare_table(store, "output.weight", config_.vocab_target, -1, {items.output});
  if (config_.output_bias) {
    store.hold(stages_.holds(items.output));
    const int64_t cols = padded_vocab(config_.vocab_target, layout.extent(Layout::Axis::tp));
    output_bias_ = add_part(store, layout, {.name = kOutputBias, .cols = cols}, 1);
  }
  store.hold(true);
  if (!config_.lora.empty() && config_.lora.side_by_side == 0) freeze_base(config_.lora, store);
}

std::vector<ParameterShape> model_parameters(const ModelConfig& config) {
  ParameterStore store({}, DType::f32);  // never allocated
  ModelConfig base = config;
  base.lora = {};
  const Transformer model(base, store);
  std::vector<ParameterShape> shapes;
  for (const ParameterSpec& p : store.specs()) {
    const int64_t cols = p.name == kOutputBias ? config.vocab_target : p.cols;
    shapes.push_back({p.name, p.rows - p.padding_rows, cols, p.rows == 1 && !p.decay, p.blocks});
  }
  return shapes;
}

std::vector<float> sinusoidal_positions(int64_t positions, int64_t width, SinusoidSpacing spacing,
                                        int64_t first) {
  std::vector<float> table(static_cast<size_t>(positions * width));
  const int64_t half = width / 2;
  const auto steps = static_cast<double>(spacing == SinusoidSpacing::paper ? half : half - 1);
  for (int64_t i = 0; i < half; ++i) {
    const double rate = std::pow(10000.0, -static_cast<double>(i) / steps);
    for (int64_t p = 0; p < positions; ++p) {
      const double angle = static_cast<double>(p + first) * rate;
      table[static_cast<size_t>(p * width + i)] = static_cast<float>(std::sin(angle));
      table[static_cast<size_t>(p * width + half + i)] = static_cast<float>(std::cos(angle));
    }
  }
  return table;
}

void Transformer::make_tables(const ParameterStore& store) {
  if (config_.positions == PositionKind::relative) {
    // Of the distances -max_positions .. max_positions.
    const saturate::Stream stream(store.device());
    const auto make = [&](bool encoder) {
      std::vector<int32_t> buckets;
      for (int64_t d = -config_.max_positions; d <= config_.max_positions; ++d)
        buckets.push_back(static_cast<int32_t>(relative_bucket(config_, encoder, d)));
      Buffer b(store.device(), buckets.size() * sizeof(int32_t));
      copy_to_device(stream, b.data(), buckets.data(), b.bytes());
      stream.synchronize();
      return b;
    };
    encoder_buckets_ = make(true);
    decoder_buckets_ = make(false);
  }
  if (config_.positions != PositionKind::sinusoidal) return;
  const std::vector<float> table = sinusoidal_positions(
      config_.max_positions, config_.d_model, config_.sinusoid_spacing, config_.first_position);
  const saturate::Stream stream(store.device());
  sinusoids_ = Buffer(store.device(), table.size() * size_of(store.wide_type()));
  if (store.wide_type() == DType::f64) {
    std::copy(table.begin(), table.end(), sinusoids_.as<double>());
    return;
  }
  copy_to_device(stream, sinusoids_.data(), table.data(), sinusoids_.bytes());
  stream.synchronize();
}

}  // namespace saturate::model
