// SPDX-License-Identifier: Apache-2.0
#include "train/validator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "data/batch_fill.h"
#include "data/packer.h"
#include "model/finite.h"
#include "model/model_folder.h"
#include "train/batch_fit.h"
#include "train/bleu.h"
#include "train/chrf.h"
#include "train/loss_tape.h"
#include "train/translation.h"

namespace saturate::train {
namespace {

// Validation sentences may be longer than any of training.
data::BatchShape shape_for(data::BatchShape s, const std::vector<ValidationSet>& sets) {
  const auto rows = [](int64_t budget, int64_t longest) {
    return std::max(budget, (longest + 7) / 8 * 8);
  };
  if (s.source_rows == 0) return s;
  for (const ValidationSet& set : sets) {
    s.max_source = std::max(s.max_source, set.tokens->stats().longest_source);
    s.max_target = std::max(s.max_target, set.tokens->stats().longest_target);
  }
  s.source_rows = rows(s.source_rows, s.max_source);
  s.target_rows = rows(s.target_rows, s.max_target);
  return s;
}

}  // namespace

std::vector<ValidationSet> validation_sets(const Corpora& corpora) {
  std::vector<ValidationSet> sets;
  if (corpora.valid)
    sets.push_back({&*corpora.valid, corpora.valid_source, corpora.valid_reference});
  for (const NamedSet& s : corpora.more_valid) sets.push_back({&s.tokens, s.source, s.reference});
  return sets;
}

std::vector<ValidationSet> test_sets(const Corpora& corpora) {
  std::vector<ValidationSet> sets;
  for (const NamedSet& s : corpora.test) sets.push_back({&s.tokens, s.source, s.reference});
  return sets;
}

Validator::Validator(const RunConfig& config, const model::ModelConfig& model,
                     const Corpora& corpora, const ParameterStore& training,
                     const data::BatchShape& shape, ValidatorOptions options)
    : config_(config),
      corpora_(corpora),
      options_(std::move(options)),
      store_(training.device(), training.compute_type()),
      model_(model, store_),
      layout_(shape_for(shape, options_.sets)),
      stream_(training.device()),
      batch_(training.device(), static_cast<size_t>(layout_.words) * sizeof(int32_t)),
      host_(training.device(), batch_.bytes()),
      totals_(training.device(), 4 * sizeof(double)),
      workspace_(training.device(), training.device().is_cuda() ? kWorkspaceBytes : 0),
      tape_(store_, TapeMode::inference, nullptr) {
  store_.set_kernels(training.kernels());
  store_.allocate(ParameterStore::Purpose::inference);
  model_.make_tables(store_);
  record_loss(tape_, model_, layout_, batch_.as<int32_t>(), {.totals = totals_.as<double>()});
  arena_ = Buffer(training.device(), tape_.plan());
  // compute-sanitizer does not see what cuBLASLt stores with TMA and would report it as never
  // written.
  fill_bytes(stream_, arena_.data(), 0, arena_.bytes());
  if (options_.translate && layout_.shape.source_rows > 0) {
    translator_ = std::make_unique<model::Translator>(
        model_, store_,
        translator_options(config.translate, layout_.shape.max_source, options_.beam));
  }
}

void Validator::take_weights(TrainingStep& step, const ParameterStore& training) {
  step.synchronize();
  store_.copy_shipped(stream_, training);
  stream_.synchronize();
}

void Validator::take_weights(TrainingStep& step, GatheredWeights& weights) {
  step.synchronize();
  weights.gather(stream_, [&](size_t number, const void* values, size_t bytes) {
    copy_to_device(stream_, store_.master({static_cast<int32_t>(number)}), values, bytes);
    stream_.synchronize();  // before the values go
  });
  store_.refresh_compute(stream_);
  stream_.synchronize();
}

void Validator::load_weights(const std::string& folder, const model::ModelConfig& model) {
  model::load_weights(folder, model, store_);
}

double Validator::loss(const data::TokenCache& tokens) {
  fill_bytes(stream_, totals_.data(), 0, totals_.bytes());
  const bool lm = layout_.shape.source_rows == 0;
  const data::PackerOptions options{.shape = layout_.shape,
                                    .order = data::PackOrder::sequential,
                                    .unit = lm ? pack_unit(config_) : data::PackUnit::sentences,
                                    .epochs = 1};
  data::Packer packer(tokens, options);
  data::BatchFiller filler(tokens, options);
  const Context ctx{store_.device(), stream_.native(), workspace_.data(), workspace_.bytes()};
  std::vector<data::PackedItem> items;
  while (packer.next(items)) {
    filler.fill(items, host_.as<int32_t>());
    copy_to_device(stream_, batch_.data(), host_.data(), batch_.bytes());
    tape_.run(ctx, arena_.data(), false);
    stream_.synchronize();  // before the host block is filled again
  }
  double totals[4] = {};
  copy_to_host(stream_, totals, totals_.data(), sizeof totals);
  stream_.synchronize();
  return totals[2] > 0 ? totals[1] / totals[2] : 0.0;
}

void Validator::translate(const ValidationSet& set, ValidationResult& result) {
  std::vector<std::vector<int32_t>> sources;
  for (const std::string& line : set.source) {
    sources.push_back(clip_source(corpora_.source.encode_sentence(line), layout_.shape.max_source,
                                  corpora_.source.sentence_end()));
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
  result.bleu = corpus_bleu(result.hypotheses, set.reference).score;
  result.chrf = corpus_chrf(result.hypotheses, set.reference).score;
}

ValidationResult Validator::run(const ValidationSet& set) {
  ValidationResult r;
  r.loss = loss(*set.tokens);
  // Nothing to translate with: the scores stay not finite as the loss is.
  if (!std::isfinite(r.loss)) return r;
  if (translator_) translate(set, r);
  return r;
}

}  // namespace saturate::train
