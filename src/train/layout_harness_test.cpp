// SPDX-License-Identifier: Apache-2.0
#include "train/layout_harness_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

#include "base/error.h"
#include "base/philox.h"
#include "model/adapter_folder.h"
#include "parallel/lockstep.h"

namespace saturate::train {
namespace {

constexpr int64_t kVocab = 101, kRows = 64, kSequences = 5;

model::ModelConfig encoder_decoder() {
  model::ModelConfig m;  // post-norm, ReLU, sinusoids, one tied table
  m.d_model = 16;
  m.encoder_layers = 2;
  m.decoder_layers = 2;
  m.heads = m.kv_heads = 4;
  m.head_size = 4;
  m.ffn = 32;
  m.vocab_source = m.vocab_target = kVocab;
  m.max_positions = 32;
  m.pad_id = m.decoder_start_id = kVocab - 1;
  m.eos_id = m.bos_id = 0;
  m.dropout = m.attention_dropout = m.activation_dropout = 0.1f;
  return m;
}

model::ModelConfig decoder_only() {
  model::ModelConfig m = encoder_decoder();  // as GPT-2
  m.kind = model::ModelKind::decoder_only;
  m.encoder_layers = 0;
  m.decoder_layers = 4;
  m.vocab_source = 0;
  m.norm_position = model::NormPosition::pre;
  m.final_norm = true;
  m.activation = kernels::ActivationKind::gelu_tanh;
  m.positions = model::PositionKind::learned;
  return m;
}

// RMS norm, gates, rotary positions, fewer key heads, no biases, an output table of its own.
void as_llama(model::ModelConfig& m) {
  m.kv_heads = 2;
  m.norm = kernels::NormKind::rms_norm;
  m.norm_position = model::NormPosition::pre;
  m.final_norm = true;
  m.activation = kernels::ActivationKind::silu;
  m.gated = true;
  m.positions = model::PositionKind::rotary;
  m.biases = false;
  m.tied_output = false;
}

void as_experts(model::ModelConfig& m, model::ExpertRouting routing) {
  m.experts = 8;
  m.expert_routing = routing;
  m.experts_per_token = routing == model::ExpertRouting::switch_one ? 1 : 2;
  m.capacity_factor = 0.6f;
  m.router_aux_loss = 0.1f;
  m.router_z_loss = 0.01f;
  m.activation_dropout = 0;
}

model::ModelConfig adapted(model::ModelConfig m, std::vector<std::string> targets) {
  m.lora = model::lora_for(
      {.rank = 3, .alpha = 6, .dropout = 0.1, .targets = std::move(targets), .base = ""},
      model::hf_tensor_mapping(m));
  return m;
}

const std::map<std::string, model::ModelConfig>& models() {
  static const auto all = [] {
    std::map<std::string, model::ModelConfig> out;
    out["translation"] = encoder_decoder();
    out["gpt"] = decoder_only();
    out["llama"] = decoder_only();
    as_llama(out["llama"]);
    out["modern-translation"] = encoder_decoder();
    as_llama(out["modern-translation"]);
    out["modern-translation"].shared_embeddings = false;
    out["modern-translation"].vocab_source = 67;
    out["modern-translation"].decoder_layers = 3;
    out["wide-gpt"] = decoder_only();  // layers and table of several slices a rank
    out["wide-gpt"].d_model = 48;
    out["wide-gpt"].head_size = 12;
    out["wide-gpt"].ffn = 192;
    out["wide-gpt"].decoder_layers = 2;
    // Places for six of ten choices, so that some are dropped; random second choices.
    out["experts"] = encoder_decoder();
    as_experts(out["experts"], model::ExpertRouting::gshard);
    out["switch"] = decoder_only();
    as_experts(out["switch"], model::ExpertRouting::switch_one);
    out["switch"].expert_every = 2;
    out["dropless"] = decoder_only();
    as_llama(out["dropless"]);
    as_experts(out["dropless"], model::ExpertRouting::dropless);
    out["linear"] = decoder_only();
    out["linear"].mixers = {"linear_attention", "self_attention"};
    out["adapted"] = adapted(encoder_decoder(), {"all-linear"});
    out["adapted-llama"] = adapted(out["llama"], {"qkv", "ffn.in"});
    return out;
  }();
  return all;
}

void fill_side(const data::SideLayout& l, int64_t rows, int64_t vocab, int64_t number, uint64_t key,
               int32_t* words) {
  int32_t row = 0;
  for (int32_t s = 0; s < kSequences; ++s) {
    words[l.cu + s] = row;
    // From a third of the rows in use to nearly all of them, so that some ranks have none.
    const int32_t length =
        4 + static_cast<int32_t>((number * 7 + s * 3) % (number % 4 == 1 ? 2 : 9));
    for (int32_t i = 0; i < length && row < rows; ++i, ++row) {
      words[l.ids + row] = static_cast<int32_t>(
          philox4x32(key, static_cast<uint64_t>(number), static_cast<uint64_t>(row)).x[0] %
          static_cast<uint32_t>(vocab - 1));
      words[l.positions + row] = i;
    }
  }
  words[l.cu + kSequences] = row;
  int32_t* const order = words + l.order;
  std::iota(order, order + rows, 0);
  std::stable_sort(order, order + row,
                   [&](int32_t a, int32_t b) { return words[l.ids + a] < words[l.ids + b]; });
  words[l.valid] = row;
}

// Of every four micro-batches the second is short and the third has no labels.
void fill(const model::ModelConfig& m, const data::BatchLayout& layout, int64_t number,
          int32_t* words) {
  std::fill_n(words, layout.words, 0);
  if (layout.shape.source_rows > 0)
    fill_side(layout.source, layout.shape.source_rows, m.vocab_source, number, 1, words);
  fill_side(layout.target, layout.shape.target_rows, m.vocab_target, number, 2, words);
  const int32_t valid = words[layout.target.valid];
  for (int64_t i = 0; i < layout.shape.target_rows; ++i) {
    const bool labelled = i < valid && number % 4 != 2 && i % 11 != 5;
    words[layout.labels + i] = labelled ? words[layout.target.ids + (i + 1) % valid] : -1;
  }
}

parallel::MeshExtents extents_of(const LayoutCase& c) {
  RunConfig config;
  set_parallel(config, c.layout);
  const ParallelConfig& p = config.parallel;
  return {.tp = static_cast<int>(p.tp),
          .cp = static_cast<int>(p.cp),
          .dp = static_cast<int>(std::max<int64_t>(p.dp, 1)),
          .pp = static_cast<int>(p.pp),
          .ep = static_cast<int>(p.ep)};
}

}  // namespace

const std::vector<std::string>& harness_models() {
  static const auto names = [] {
    std::vector<std::string> out;
    for (const auto& [name, config] : models()) out.push_back(name);
    return out;
  }();
  return names;
}

std::string LayoutCase::text() const {
  return fmt::format("{} {} {}{}{}", model, layout, micro_batches, variant.empty() ? "" : " ",
                     variant);
}

LayoutCase case_of(const std::string& text) {
  LayoutCase c;
  std::istringstream(text) >> c.model >> c.layout >> c.micro_batches >> c.variant;
  return c;
}

int ranks_of(const LayoutCase& c) {
  const parallel::MeshExtents e = extents_of(c);
  return e.tp * e.cp * e.dp * e.pp;
}

LayoutTask task_of(const LayoutCase& c) {
  LayoutTask t;
  t.model = models().at(c.model);
  const bool translation = t.model.kind == model::ModelKind::encoder_decoder;
  t.options.shape = {.source_rows = translation ? kRows : 0,
                     .target_rows = kRows,
                     .sequences = kSequences,
                     .max_source = translation ? 16 : 0,
                     .max_target = 16};
  OptimizerOptions& o = t.options.optimizer;
  // A gradient that is rounding alone moves a weight by lr * 1e-17 / eps.
  o.eps = 1e-6f;
  o.weight_decay = 0.1f;
  o.clip_norm = 0.05f;  // the norm is about 0.5
  o.schedule.peak_lr = 1e-2f;
  o.schedule.warmup_steps = 2;
  t.options.bucket_bytes = 8000;  // several buckets
  RunConfig config;
  set_parallel(config, c.layout);
  t.parallel = config.parallel;
  t.micro_batches = c.micro_batches;
  t.steps = 3;
  t.seed = 5;
  t.fill = [m = t.model](const data::BatchLayout& l, int64_t number, int32_t* words) {
    fill(m, l, number, words);
  };
  if (c.variant == "frozen") t.options.freeze = {"*.layers.0.*"};
  if (c.variant == "averaged") o.ema_decay = 0.9f;
  if (c.variant == "undropped")
    t.model.dropout = t.model.attention_dropout = t.model.activation_dropout = 0;
  if (c.variant == "unclipped") o.clip_norm = 0;
  return t;
}

std::string refusal_of(const LayoutCase& c) {
  RunConfig config;
  set_parallel(config, c.layout);
  try {
    check_layout(config, models().at(c.model), ranks_of(c));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

const LayoutResult& reference_of(const LayoutCase& c) {
  static std::map<std::string, LayoutResult> made;
  LayoutCase one = c;
  one.layout = "dp=1";
  const auto [it, fresh] = made.try_emplace(one.text());
  if (fresh) it->second = result_of(one);
  return it->second;
}

LayoutResult result_of(const LayoutCase& c, const Body& body) {
  const LayoutTask task = task_of(c);
  LayoutResult result;
  parallel::run_lockstep(ranks_of(c), [&](parallel::Communicator& ranks) {
    LayoutResult mine = body(ranks, task);
    if (ranks.rank() == 0) result = std::move(mine);
  });
  return result;
}

std::string first_beyond(const std::vector<LayoutDistance>& distances, double bound) {
  for (const LayoutDistance& d : distances)
    if (!(d.relative <= bound)) return fmt::format("{} differs by {:.2g}", d.what, d.relative);
  return "";
}

std::string mistake_of(const LayoutCase& c) {
  return first_beyond(distances(reference_of(c), result_of(c)), kBound);
}

}  // namespace saturate::train
