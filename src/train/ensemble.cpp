// SPDX-License-Identifier: Apache-2.0
#include "train/ensemble.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/counted.h"
#include "base/error.h"
#include "base/log.h"
#include "base/printable.h"
#include "kernels/decode/mean_logits.h"
#include "model/hf_config.h"

namespace saturate::train {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "ensemble", what);
}

void need_same_pieces(const char* side, const LoadedModel& a, const data::Tokenizer& of_a,
                      const LoadedModel& b, const data::Tokenizer& of_b) {
  const std::vector<std::string>&x = of_a.pieces(), &y = of_b.pieces();
  const auto at = static_cast<size_t>(std::ranges::mismatch(x, y).in1 - x.begin());
  if (at == x.size() && at == y.size()) return;
  const auto shown = [at](const std::vector<std::string>& v) {
    return at < v.size() ? "\"" + printable(v[at]) + "\"" : "none";
  };
  refuse(
      fmt::format("token {} of the {} vocabulary is {} in {} and {} in {}; models that translate "
                  "together need the same vocabularies, in the same order",
                  at, side, shown(x), a.folder, shown(y), b.folder));
}

void need_same_ids(const LoadedModel& a, const LoadedModel& b) {
  const auto need = [&](const char* what, int64_t x, int64_t y) {
    if (x == y) return;
    refuse(fmt::format("{} is {} in {} and {} in {}; models that translate together need the same",
                       what, x, a.folder, y, b.folder));
  };
  need("vocab_source", a.config.vocab_source, b.config.vocab_source);
  need("vocab_target", a.config.vocab_target, b.config.vocab_target);
  need("eos_id", a.config.eos_id, b.config.eos_id);
  need("pad_id", a.config.pad_id, b.config.pad_id);
  need("decoder_start_id", a.config.decoder_start_id, b.config.decoder_start_id);
}

void need_same_frames(const LoadedModel& a, const LoadedModel& b) {
  const Tokenizers &x = a.tokenizers, &y = b.tokenizers;
  if (std::ranges::equal(x.source.sentence_begin(), y.source.sentence_begin()) &&
      std::ranges::equal(x.source.sentence_end(), y.source.sentence_end()) &&
      std::ranges::equal(x.target.sentence_begin(), y.target.sentence_begin()))
    return;
  refuse(fmt::format(
      "{} and {} begin or end their texts with other tokens, as multilingual models do; "
      "give --source-lang and --target-lang, or models that agree",
      a.folder, b.folder));
}

// A request may name other languages than those that models were loaded with, and all frame its
// text as the first does.
void need_same_languages(const LoadedModel& a, const LoadedModel& b) {
  const Languages &x = a.languages, &y = b.languages;
  if (x.told == y.told && x.ids == y.ids && x.target_is_start == y.target_is_start) return;
  refuse(
      fmt::format("{} and {} have other languages or name them otherwise; models that translate "
                  "together need the same",
                  a.folder, b.folder));
}

void need_same_text(const LoadedModel& a, const LoadedModel& b) {
  need_same_pieces("source", a, a.tokenizers.source, b, b.tokenizers.source);
  need_same_pieces("target", a, a.tokenizers.target, b, b.tokenizers.target);
  need_same_ids(a, b);
  need_same_languages(a, b);
  need_same_frames(a, b);
  if (a.tokenizers.source.fingerprint() == b.tokenizers.source.fingerprint()) return;
  log_warning(
      fmt::format("the tokenizers of {} and {} have the same tokens but are not the same; the "
                  "text is cut as the first does",
                  a.folder, b.folder));
}

}  // namespace

LoadedModel load_ensemble(std::span<const std::string> paths, std::span<const double> weights,
                          const std::string& device, const std::string& precision,
                          const LoadHooks& hooks) {
  if (paths.empty() || std::ssize(paths) > kernels::kMaxModels) {
    refuse(fmt::format("{} models are given; at most {} translate together", paths.size(),
                       kernels::kMaxModels));
  }
  if (!weights.empty() && weights.size() != paths.size()) {
    refuse(fmt::format("{} for {}; give one for each", counted(weights.size(), "weight"),
                       counted(paths.size(), "model")));
  }
  int64_t positions = INT64_MAX;
  for (const std::string& path : paths) {
    const model::ModelConfig config = model::read_model_config(model_place(path).folder);
    if (config.kind != model::ModelKind::encoder_decoder)
      refuse(path + " is a language model; only translation models translate together");
    positions = std::min(positions, config.max_positions);
  }
  LoadHooks first_hooks = hooks, other_hooks = hooks;
  first_hooks.on_memory = other_hooks.on_memory = {};
  first_hooks.on_text = [&](const LoadedModel& m) {
    LoadedModel seen = m;
    seen.config.max_positions = positions;
    if (hooks.on_text) hooks.on_text(seen);
  };
  LoadedModel all = load_model(paths[0], device, precision, first_hooks);
  other_hooks.on_text = [&](const LoadedModel& m) { need_same_text(all, m); };
  for (const std::string& path : paths.subspan(1))
    all.others.push_back(load_model(path, device, precision, other_hooks));
  all.config.max_positions = positions;
  for (size_t i = 0; i < weights.size(); ++i)
    (i == 0 ? all : all.others[i - 1]).weight = weights[i];
  if (hooks.on_memory) hooks.on_memory(all);
  return all;
}

std::vector<double> ensemble_weights(const LoadedModel& model) {
  std::vector<double> weights{model.weight};
  for (const LoadedModel& m : model.others) weights.push_back(m.weight);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& w : weights) w /= sum;
  return weights;
}

size_t weight_bytes(const LoadedModel& model) {
  size_t sum = model.store->weight_bytes();
  for (const LoadedModel& m : model.others) sum += m.store->weight_bytes();
  return sum;
}

std::vector<model::EnsembleModel> ensemble_of(const LoadedModel& model) {
  std::vector<model::EnsembleModel> models{
      {model.transformer.get(), model.store.get(), model.weight}};
  for (const LoadedModel& m : model.others)
    models.push_back({m.transformer.get(), m.store.get(), m.weight});
  return models;
}

}  // namespace saturate::train
