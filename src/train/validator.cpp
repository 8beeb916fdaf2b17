// SPDX-License-Identifier: Apache-2.0
#include "train/validator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/batch_fill.h"
#include "data/packer.h"
#include "model/finite.h"
#include "train/batch_fit.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/loss_tape.h"
#include "train/translation.h"

namespace saturate::train {
namespace {

// Validation sentences may be longer than any of training.
data::BatchShape shape_for(data::BatchShape s, const Corpora& corpora) {
  if (!corpora.valid) return s;
  const auto rows = [](int64_t budget, int64_t longest) {
    return std::max(budget, (longest + 7) / 8 * 8);
  };
  if (s.source_rows > 0) {
    const data::CacheStats& stats = corpora.valid->stats();
    s.max_source = std::max(s.max_source, stats.longest_source);
    s.max_target = std::max(s.max_target, stats.longest_target);
    s.source_rows = rows(s.source_rows, s.max_source);
    s.target_rows = rows(s.target_rows, s.max_target);
  }
  return s;
}

}  // namespace

Validator::Validator(const RunConfig& config, const model::ModelConfig& model,
                     const Corpora& corpora, const ParameterStore& training,
                     const data::BatchShape& shape)
    : config_(config),
      corpora_(corpora),
      store_(training.device(), training.compute_type()),
      model_(model, store_),
      layout_(shape_for(shape, corpora)),
      stream_(training.device()),
      batch_(training.device(), static_cast<size_t>(layout_.words) * sizeof(int32_t)),
      totals_(training.device(), 4 * sizeof(double)),
      workspace_(training.device(), training.device().is_cuda() ? kWorkspaceBytes : 0) {
  store_.allocate(ParameterStore::Purpose::inference);
  model_.make_tables(store_);
  if (corpora.valid) {
    tape_.emplace(store_, TapeMode::inference, nullptr);
    record_loss(*tape_, model_, layout_, batch_.as<int32_t>(), {.totals = totals_.as<double>()});
    arena_ = Buffer(training.device(), tape_->plan());
    // compute-sanitizer does not see what cuBLASLt stores with TMA and would report it
    // as never written.
    fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
  }
  if (!corpora.valid_source.empty() && config.validate.metric != "loss") {
    translator_ = std::make_unique<model::Translator>(
        model_, store_,
        translator_options(config.translate, layout_.shape.max_source, config.validate.beam));
  }
}

void Validator::take_weights(TrainingStep& step, const ParameterStore& training) {
  step.synchronize();
  const Buffer& from = step.average().data() ? step.average() : training.masters();
  copy_on_device(stream_, store_.masters().data(), from.data(), from.bytes());
  store_.refresh_compute(stream_);
  stream_.synchronize();
}

double Validator::loss() {
  fill_bytes(stream_, totals_.data(), 0, totals_.bytes());
  const bool lm = layout_.shape.source_rows == 0;
  const data::PackerOptions options{.shape = layout_.shape,
                                    .order = data::PackOrder::sequential,
                                    .unit = lm ? pack_unit(config_) : data::PackUnit::sentences,
                                    .epochs = 1};
  data::Packer packer(*corpora_.valid, options);
  data::BatchFiller filler(*corpora_.valid, options);
  HostBuffer host(store_.device(), batch_.bytes());
  const Context ctx{store_.device(), stream_.native(), workspace_.data(), workspace_.bytes()};
  std::vector<data::PackedItem> items;
  while (packer.next(items)) {
    filler.fill(items, host.as<int32_t>());
    copy_to_device(stream_, batch_.data(), host.data(), batch_.bytes());
    tape_->run(ctx, arena_.data(), false);
    stream_.synchronize();  // before the host block is filled again
  }
  double totals[4] = {};
  copy_to_host(stream_, totals, totals_.data(), sizeof totals);
  stream_.synchronize();
  return totals[2] > 0 ? totals[1] / totals[2] : 0.0;
}

void Validator::translate(ValidationResult& result) {
  std::vector<std::vector<int32_t>> sources;
  for (const std::string& line : corpora_.valid_source) {
    sources.push_back(clip_source(corpora_.source.encode_sentence(line), layout_.shape.max_source,
                                  corpora_.source.eos_id()));
  }
  result.translated = true;
  std::vector<std::vector<int32_t>> translations;
  try {
    translations = translator_->translate(sources);
  } catch (const model::NonFiniteScores&) {
    result.bleu = result.chrf = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  for (const auto& ids : translations) {
    const size_t tokens = sources[result.hypotheses.size()].size();
    result.hypotheses.push_back(decode_translation(corpora_.target, tokens, ids));
  }
  result.bleu = corpus_bleu(result.hypotheses, corpora_.valid_reference).score;
  result.chrf = corpus_chrf(result.hypotheses, corpora_.valid_reference).score;
}

ValidationResult Validator::run() {
  ValidationResult r;
  if (tape_) r.loss = loss();
  // Nothing to translate with: the scores stay not finite as the loss is.
  if (!std::isfinite(r.loss)) return r;
  if (translator_) translate(r);
  return r;
}

}  // namespace saturate::train
