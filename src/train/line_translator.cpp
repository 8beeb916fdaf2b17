// SPDX-License-Identifier: Apache-2.0
#include "train/line_translator.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"

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

model::TranslatorOptions options_of(const LoadedModel& model, const TranslateConfig& config) {
  model::TranslatorOptions o = translator_options(config, model.config.max_positions, config.beam);
  o.plan_by_length = true;
  return o;
}

}  // namespace

LineTranslator::LineTranslator(const LoadedModel& model, const TranslateConfig& config,
                               int64_t nbest)
    : target_(model.tokenizers.target),
      source_eos_(model.tokenizers.source.eos_id()),
      nbest_(static_cast<size_t>(nbest)),
      translator_(*model.transformer, *model.store, options_of(model, config)) {}

void LineTranslator::warm_up(int64_t lines) {
  const int64_t most = std::clamp<int64_t>(lines, 1, translator_.batch_sentences());
  translator_.translate(
      std::vector<std::vector<int32_t>>(static_cast<size_t>(most), {source_eos_, source_eos_}));
}

void LineTranslator::add(std::vector<int32_t> source) {
  waiting_.emplace(std::ssize(source), added_);
  sources_.emplace(added_++, std::move(source));
}

std::vector<int64_t> LineTranslator::choose() {
  std::vector<int64_t> lines;
  int64_t rows = 0;
  const auto take = [&](auto at) {
    rows += at->first;
    lines.push_back(at->second);
    return waiting_.erase(at);
  };
  const auto& [oldest, source] = *sources_.begin();
  const int64_t length = std::ssize(source);
  take(waiting_.find({length, oldest}));
  // Of one length the older first; of two lengths the nearer, and the shorter if both are as near.
  auto longer = waiting_.lower_bound({length, 0});
  while (std::ssize(lines) < translator_.batch_sentences() && !waiting_.empty()) {
    const bool up = longer != waiting_.end(), down = longer != waiting_.begin();
    auto next = longer;
    if (!up || (down && length - std::prev(longer)->first <= longer->first - length)) --next;
    if (rows + next->first > translator_.batch_rows()) break;
    longer = take(next);
  }
  return lines;
}

std::vector<std::vector<Translation>> LineTranslator::translate(
    const std::vector<std::vector<int32_t>>& sources) {
  std::vector<std::vector<Translation>> out(sources.size());
  if (nbest_ == 0) {
    const std::vector<std::vector<int32_t>> ids = translator_.translate(sources);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i].push_back({.text = decode_translation(target_, sources[i].size(), ids[i])});
    }
    return out;
  }
  const std::vector<std::vector<model::Hypothesis>> found = translator_.search(sources);
  for (size_t i = 0; i < out.size(); ++i) {
    // A line without words has one translation, itself.
    const size_t count = sources[i].size() > 1 ? std::min(nbest_, found[i].size()) : 1;
    for (const model::Hypothesis& h : std::span(found[i]).first(count)) {
      out[i].push_back({.text = decode_translation(target_, sources[i].size(), h.ids),
                        .log_probability = h.log_probability,
                        .score = h.score});
    }
  }
  return out;
}

void LineTranslator::translate_batch(const Sink& sink) {
  if (idle()) return;
  const std::vector<int64_t> lines = choose();
  std::vector<std::vector<int32_t>> sources;
  for (const int64_t line : lines) {
    sources.push_back(std::move(sources_.extract(line).mapped()));
  }
  std::vector<std::vector<Translation>> translated = translate(sources);
  for (size_t i = 0; i < lines.size(); ++i) done_.emplace(lines[i], std::move(translated[i]));
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
