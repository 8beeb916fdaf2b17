// SPDX-License-Identifier: Apache-2.0
#include "train/batch_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/corpus.h"
#include "train/memory_fit.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

std::string size_text(size_t bytes) { return format_bytes(static_cast<double>(bytes)); }

void tell(const RunConfig& config, const FittedBatch& f, size_t limit) {
  std::string changed;
  if (f.batch.accumulate != config.batch.accumulate) {
    changed =
        fmt::format("{} micro-batches of {} target tokens instead of {} of {}", f.batch.accumulate,
                    f.batch.target_tokens, config.batch.accumulate, config.batch.target_tokens);
  }
  if (f.recompute_units && f.memory.recompute.units > 0)
    changed += (changed.empty() ? "" : "; ") + text_of(f.memory.recompute);
  if (changed.empty()) return;
  log_info(fmt::format("{} {}: {}", config.train.memory.value > 0 ? "train.memory" : "free memory",
                       size_text(limit), changed));
}

}  // namespace

data::PackUnit pack_unit(const RunConfig& config) {
  const bool stream = config.data.format == "stream";
  return stream ? data::PackUnit::stream : data::PackUnit::sentences;
}

FittedRows resolve_shape(const RunConfig& config, const data::TokenCache& cache,
                         const model::ModelConfig& model) {
  const bool lm = model.kind == model::ModelKind::decoder_only;
  const int64_t limit = std::min(longest_sentence(config), model.max_positions);
  // No longer than the corpus needs: attention's grid covers the longest sentence of every
  // sequence. What stands after the head may be as long as the filter lets pass.
  const auto longest = [&](int64_t in_head) {
    return cache.continues_after_head() ? limit : std::min(limit, in_head);
  };
  const int64_t longest_source = lm ? 0 : longest(cache.head().longest_source);
  const int64_t longest_target = lm ? limit : longest(cache.head().longest_target);
  const auto round_up = [](int64_t rows, int64_t unit) { return (rows + unit - 1) / unit * unit; };
  const int64_t rows = round_up(std::max(config.batch.target_tokens, longest_target), 8);
  data::BatchShape s =
      data::suggest_shape(cache, rows, longest_source, longest_target, pack_unit(config));
  if (config.batch.source_tokens > 0 && !lm) s.source_rows = config.batch.source_tokens;
  s.source_rows = round_up(s.source_rows, 8);
  if (config.batch.sequences > 0) s.sequences = config.batch.sequences;
  // Rows of one rank may be any number: those of a stream are full, and not rounded to 8.
  const int64_t unit = row_multiple(config.parallel);
  if (unit == 8) return {.shape = s};
  FittedRows r{.shape = s};
  r.shape.source_rows = round_up(s.source_rows, unit);
  r.shape.target_rows = round_up(s.target_rows, unit);
  r.source_padding = r.shape.source_rows - s.source_rows;
  r.target_padding = r.shape.target_rows - s.target_rows;
  return r;
}

FittedBatch fit_batch(const RunConfig& config, const RowsOf& rows_of,
                      const model::ModelConfig& model, const ParameterStore& like,
                      const Layout& layout, parallel::Communicator& ranks) {
  bool offload = config.parallel.offload;
  const auto batch_of = [&](int64_t halvings) -> std::optional<RunConfig> {
    RunConfig trial = config;
    trial.parallel.offload = offload;
    for (; halvings > 0; --halvings) {
      if (trial.batch.target_tokens < 2 * 64) return std::nullopt;
      trial.batch.target_tokens /= 2;
      trial.batch.source_tokens /= 2;
      trial.batch.sequences /= 2;
      trial.batch.accumulate *= 2;
    }
    return trial;
  };
  const auto fitted = [&](const MemoryTrial& t) -> std::optional<FittedBatch> {
    const std::optional<RunConfig> trial = batch_of(t.halvings);
    if (!trial) return std::nullopt;
    FittedBatch f{
        .batch = trial->batch, .rows = rows_of(*trial), .memory = {}, .recompute_units = t.units};
    StepOptions options = resolve_step(*trial, f.rows.shape, ranks.size());
    options.recompute_units = t.units;
    f.memory = plan_step(model, like, options, layout);
    return f;
  };
  const bool limited = config.train.memory.value > 0;
  const size_t free_bytes = device_info(like.device()).free_bytes;
  MemoryFit fit{.automatic = config.parallel.recompute == "auto"};
  fit.limit = limited          ? static_cast<size_t>(config.train.memory.value)
              : free_bytes > 0 ? free_bytes
                               : SIZE_MAX;
  fit.halvings = limited ? MemoryFit::kAnyHalvings : 0;
  fit.plan = [&](const MemoryTrial& t) -> std::optional<StepMemory> {
    const auto f = fitted(t);
    return f ? std::optional(f->memory) : std::nullopt;
  };
  if (const auto t = fit.cheapest(ranks)) {
    const FittedBatch f = *fitted(*t);
    tell(config, f, fit.limit);
    return f;
  }
  // What helps where no batch is small enough.
  const auto remedy = [&] {
    if (config.optimizer.moments != "fp32") return std::string("use a smaller model");
    offload = true;
    const auto t = config.parallel.offload ? std::nullopt : fit.cheapest(ranks);
    const StepMemory m = t ? fitted(*t)->memory : StepMemory{};
    offload = config.parallel.offload;
    return t ? fmt::format("parallel.offload = true fits, in {} and {} of host memory",
                           size_text(m.total()), size_text(m.host))
             : std::string("use a smaller model");
  };
  if (limited) {
    FittedBatch smallest;
    const auto units = fit.automatic ? std::optional<int64_t>(INT64_MAX) : std::nullopt;
    for (int64_t h = 0; const auto f = fitted({.halvings = h, .units = units}); ++h) smallest = *f;
    throw Error(
        Errc::out_of_memory, "train",
        fmt::format("train.memory is {}, but even {} target tokens need {}: {} parameters and "
                    "{} optimizer state; {}",
                    size_text(fit.limit), smallest.batch.target_tokens,
                    size_text(smallest.memory.total()), size_text(smallest.memory.parameters),
                    size_text(smallest.memory.optimizer), remedy()));
  }
  const FittedBatch wanted = *fitted({});
  fit.halvings = MemoryFit::kAnyHalvings;
  const auto also = [](const char* key, int64_t value) {  // what was given is halved as well
    return value > 0 ? fmt::format(" --set batch.{}={}", key, value) : std::string();
  };
  const auto t = fit.cheapest(ranks);
  const BatchConfig smaller = t ? batch_of(t->halvings)->batch : BatchConfig{};
  throw Error(
      Errc::out_of_memory, "train",
      fmt::format("the step needs {} ({} of activations) and {} has {} free; {}",
                  size_text(wanted.memory.total()), size_text(wanted.memory.activations),
                  to_string(like.device()), size_text(free_bytes),
                  t ? fmt::format("this fits, with the same result: --set batch.target_tokens={} "
                                  "--set batch.accumulate={}{}{}",
                                  smaller.target_tokens, smaller.accumulate,
                                  also("source_tokens", smaller.source_tokens),
                                  also("sequences", smaller.sequences))
                    : "no batch of this model fits; " + remedy()));
}

}  // namespace saturate::train
