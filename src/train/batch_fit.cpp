// SPDX-License-Identifier: Apache-2.0
#include "train/batch_fit.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/corpus.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

StepMemory plan(const RunConfig& config, const data::BatchShape& shape,
                const model::ModelConfig& model, const ParameterStore& like, const Layout& layout) {
  return plan_step(model, like, resolve_step(config, shape, layout.mesh().size()), layout);
}

std::string size_text(size_t bytes) { return format_bytes(static_cast<double>(bytes)); }

}  // namespace

data::PackUnit pack_unit(const RunConfig& config) {
  const bool stream = config.data.format == "stream";
  return stream ? data::PackUnit::stream : data::PackUnit::sentences;
}

data::BatchShape resolve_shape(const RunConfig& config, const data::TokenCache& cache,
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
  const int64_t unit = row_multiple(config.parallel);
  const auto round_up = [&](int64_t rows) { return (rows + unit - 1) / unit * unit; };
  const int64_t rows = round_up(std::max(config.batch.target_tokens, longest_target));
  data::BatchShape s =
      data::suggest_shape(cache, rows, longest_source, longest_target, pack_unit(config));
  if (config.batch.source_tokens > 0 && !lm) s.source_rows = config.batch.source_tokens;
  s.source_rows = round_up(s.source_rows);
  if (unit > 8) s.target_rows = round_up(s.target_rows);  // of full rows of a stream, any number
  if (config.batch.sequences > 0) s.sequences = config.batch.sequences;
  return s;
}

FittedBatch fit_batch(const RunConfig& config, const data::TokenCache& cache,
                      const model::ModelConfig& model, const ParameterStore& like,
                      const Layout& layout) {
  RunConfig trial = config;
  const auto current = [&] {
    FittedBatch f{.batch = trial.batch, .shape = resolve_shape(trial, cache, model), .memory = {}};
    f.memory = plan(trial, f.shape, model, like, layout);
    return f;
  };
  const auto halve = [&] {
    if (trial.batch.target_tokens < 2 * 64) return false;
    trial.batch.target_tokens /= 2;
    trial.batch.source_tokens /= 2;
    trial.batch.sequences /= 2;
    trial.batch.accumulate *= 2;
    return true;
  };
  FittedBatch fitted = current();
  const auto limit = static_cast<size_t>(config.train.memory.value);
  const size_t free_bytes = device_info(like.device()).free_bytes;
  if (limit > 0) {
    while (fitted.memory.total() > limit && halve()) fitted = current();
    if (fitted.memory.total() > limit) {
      throw Error(
          Errc::out_of_memory, "train",
          fmt::format("train.memory is {}, but even {} target tokens need {}: {} parameters and "
                      "{} optimizer state; use a smaller model",
                      size_text(limit), fitted.batch.target_tokens,
                      size_text(fitted.memory.total()), size_text(fitted.memory.parameters),
                      size_text(fitted.memory.optimizer)));
    }
    if (fitted.batch.accumulate != config.batch.accumulate) {
      log_info(
          fmt::format("train.memory {}: {} micro-batches of {} target tokens instead of {} of {}",
                      size_text(limit), fitted.batch.accumulate, fitted.batch.target_tokens,
                      config.batch.accumulate, config.batch.target_tokens));
    }
    return fitted;
  }
  if (fitted.memory.total() <= free_bytes || free_bytes == 0) return fitted;
  const FittedBatch wanted = fitted;
  const auto also = [](const char* key, int64_t value) {  // what was given is halved as well
    return value > 0 ? fmt::format(" --set batch.{}={}", key, value) : std::string();
  };
  while (fitted.memory.total() > free_bytes && halve()) fitted = current();
  throw Error(
      Errc::out_of_memory, "train",
      fmt::format("the step needs {} ({} of activations) and {} has {} free; {}",
                  size_text(wanted.memory.total()), size_text(wanted.memory.activations),
                  to_string(like.device()), size_text(free_bytes),
                  fitted.memory.total() <= free_bytes
                      ? fmt::format("this fits, with the same result: --set batch.target_tokens={} "
                                    "--set batch.accumulate={}{}{}",
                                    fitted.batch.target_tokens, fitted.batch.accumulate,
                                    also("source_tokens", fitted.batch.source_tokens),
                                    also("sequences", fitted.batch.sequences))
                      : std::string("no batch of this model fits; use a smaller model")));
}

}  // namespace saturate::train
