// SPDX-License-Identifier: Apache-2.0
#include "train/line_translator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "runtime/parallel_for.h"

namespace saturate::train {

std::vector<int32_t> encode_source(const data::Tokenizer& source, int64_t limit,
                                   std::string_view line, int64_t number) {
  std::vector<int32_t> ids = source.encode_sentence(line);
  if (std::ssize(ids) > limit) {
    log_warning(fmt::format("line {} has {} tokens; the model takes {}, the rest is left out",
                            number, ids.size(), limit));
  }
  return clip_source(std::move(ids), limit, source.eos_id());
}

namespace {

// Hypotheses that one thread decodes together. OpenBLAS packs the weights anew in every product,
// which at 64 rows takes a quarter of the time; more rows need more memory in each thread.
constexpr int64_t kRowsOfAll = 256, kRowsOfAThread = 64, kFewRowsOfAThread = 32;

model::TranslatorOptions options_of(const LoadedModel& model, const TranslateConfig& config) {
  model::TranslatorOptions o = translator_options(config, model.config.max_positions, config.beam);
  o.plan_by_length = true;
  if (model.store->device().is_cuda()) return o;
  const int64_t all = o.sentences;
  const int64_t rows = std::max(kRowsOfAThread, kRowsOfAll / cpu_threads());
  o.sentences = std::clamp<int64_t>(rows / config.beam, 1, all);
  o.source_rows = std::max(o.max_source, o.source_rows * o.sentences / all);
  return o;
}

}  // namespace

LineTranslator::LineTranslator(const LoadedModel& model, const TranslateConfig& config,
                               int64_t nbest)
    : target_(model.tokenizers.target),
      source_eos_(model.tokenizers.source.eos_id()),
      nbest_(static_cast<size_t>(nbest)),
      most_lines_(options_of(model, config).sentences),
      most_rows_(options_of(model, config).source_rows),
      few_lines_(std::clamp<int64_t>(kFewRowsOfAThread / config.beam, 1, most_lines_)) {
  const model::TranslatorOptions options = options_of(model, config);
  if (model.store->device().is_cuda()) {
    translator_.emplace(*model.transformer, *model.store, options);
  } else {
    workers_.emplace(*model.transformer, *model.store, options, cpu_threads(), nbest > 0);
  }
}

void LineTranslator::warm_up(int64_t lines) {
  const int64_t most = std::clamp<int64_t>(lines, 1, most_lines_);
  translator_.value().translate(
      std::vector<std::vector<int32_t>>(static_cast<size_t>(most), {source_eos_, source_eos_}));
}

void LineTranslator::add(std::vector<int32_t> source) {
  waiting_.emplace(std::ssize(source), added_);
  sources_.emplace(added_++, std::move(source));
}

// On the CPU the batches get smaller as lines run out, so that all threads end at about one time: by
// halves, since those are the sizes that the translators have plans for.
int64_t LineTranslator::lines_of_a_batch() const {
  int64_t most = most_lines_;
  if (!workers_ || workers_->threads() == 1) return most;
  while (most / 2 >= few_lines_ && std::ssize(waiting_) < workers_->threads() * most) most /= 2;
  return most;
}

TranslationBatch LineTranslator::choose() {
  const int64_t most = lines_of_a_batch(), most_rows = most_rows_ * most / most_lines_;
  TranslationBatch batch;
  int64_t rows = 0;
  const auto take = [&](auto at) {
    rows += at->first;
    batch.lines.push_back(at->second);
    return waiting_.erase(at);
  };
  const auto& [oldest, source] = *sources_.begin();
  const int64_t length = std::ssize(source);
  take(waiting_.find({length, oldest}));
  // Of one length the older first; of two lengths the nearer, and the shorter if both are as near.
  auto longer = waiting_.lower_bound({length, 0});
  while (std::ssize(batch.lines) < most && !waiting_.empty()) {
    const bool up = longer != waiting_.end(), down = longer != waiting_.begin();
    auto next = longer;
    if (!up || (down && length - std::prev(longer)->first <= longer->first - length)) --next;
    if (rows + next->first > most_rows) break;
    longer = take(next);
  }
  for (const int64_t line : batch.lines) {
    batch.sources.push_back(std::move(sources_.extract(line).mapped()));
  }
  return batch;
}

std::vector<Translation> LineTranslator::texts(size_t source_tokens,
                                               std::vector<model::Hypothesis>& found) const {
  // A line without words has one translation, itself.
  const size_t most = source_tokens > 1 ? std::max<size_t>(nbest_, 1) : 1;
  std::vector<Translation> out;
  for (const model::Hypothesis& h : std::span(found).first(std::min(most, found.size()))) {
    out.push_back({.text = decode_translation(target_, source_tokens, h.ids),
                   .log_probability = h.log_probability,
                   .score = h.score});
  }
  return out;
}

void LineTranslator::translate_batch(const Sink& sink) {
  if (idle()) return;
  TranslationBatch batch;
  if (workers_) {
    while (!waiting_.empty() && workers_->held() < workers_->threads()) workers_->give(choose());
    batch = workers_->take();
  } else {
    batch = choose();
    translate(*translator_, nbest_ > 0, batch);
  }
  for (size_t i = 0; i < batch.lines.size(); ++i) {
    done_.emplace(batch.lines[i], texts(batch.sources[i].size(), batch.found[i]));
  }
  for (; !done_.empty() && done_.begin()->first == given_; ++given_) {
    sink(done_.begin()->second);
    done_.erase(done_.begin());
  }
}

std::vector<std::string> translate_lines(const LoadedModel& model, const TranslateConfig& config,
                                         std::span<const std::string> lines) {
  LineTranslator translator(model, config);
  for (const std::string& line : lines) {
    translator.add(encode_source(model.tokenizers.source, model.config.max_positions, line,
                                 &line - lines.data() + 1));
  }
  std::vector<std::string> out;
  while (!translator.idle()) {
    translator.translate_batch(
        [&](std::span<const Translation> t) { out.push_back(t.front().text); });
  }
  return out;
}

}  // namespace saturate::train
