// SPDX-License-Identifier: Apache-2.0
#include "train/line_translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "model/finite.h"
#include "runtime/parallel_for.h"
#include "train/ensemble.h"

namespace saturate::train {

std::vector<int32_t> encode_source(const data::Tokenizer& source, int64_t limit,
                                   std::string_view line, int64_t number) {
  std::vector<int32_t> ids = source.encode_sentence(line);
  if (std::ssize(ids) > limit) {
    log_warning(fmt::format("line {} has {} tokens; the model takes {}, the rest is left out",
                            number, ids.size(), limit));
  }
  return clip_source(std::move(ids), limit, source.sentence_end());
}

std::vector<int32_t> encode_phrase(const data::Tokenizer& target, std::string_view phrase,
                                   const std::string& place) {
  std::vector<int32_t> ids;
  if (!phrase.empty()) target.encode(phrase, ids);
  const std::span<const int32_t> begin = target.sentence_begin();
  if (std::ranges::equal(std::span(ids).first(std::min(ids.size(), begin.size())), begin))
    ids.erase(ids.begin(), ids.begin() + std::ssize(begin));
  if (std::ranges::find(ids, target.unk_id()) == ids.end()) return ids;
  throw Error(
      Errc::invalid_argument, "translate",
      fmt::format("{}: the phrase \"{}\" has a character that the vocabulary lacks; leave it "
                  "out, or spell it otherwise",
                  place, phrase));
}

namespace {

// Hypotheses that one thread decodes together. All weights pass from memory in every step, whatever
// the rows; more rows need more memory in each thread.
constexpr int64_t kRowsOfAll = 256, kRowsOfAThread = 64, kFewRowsOfAThread = 32;
// A GPU takes more lines than batch_tokens say, as many times as its hypotheses are fewer than this
// beam's, since the products of 2,048 rows take it little longer than those of 1,024; at most four
// times. With same_bits, whose bits are those of so many rows, and where memory is small, as of old.
constexpr int64_t kBeamOfAGpu = 8, kBeamOfASmallGpu = 4;
constexpr size_t kMuchMemory = size_t{20} << 30;

}  // namespace

model::TranslatorOptions line_translator_options(const LoadedModel& model,
                                                 const TranslateConfig& config,
                                                 const LineOptions& lines) {
  model::TranslatorOptions o = translator_options(config, model.config.max_positions, config.beam);
  o.suppressed = lines.suppressed;
  o.shortlist = lines.shortlist;
  o.same_bits = lines.same_bits;
  o.sampling = lines.search.draw.has_value();
  o.attention = lines.attention;
  o.attention_layer = lines.attention_layer;
  o.attention_head = lines.attention_head;
  const int64_t all = o.sentences;
  if (model.store->device().is_cuda()) {
    const bool large = device_info(model.store->device()).memory_bytes >= kMuchMemory;
    const int64_t more =
        large && !lines.same_bits
            ? std::clamp<int64_t>((kBeamOfAGpu + config.beam - 1) / config.beam, 1, 4)
            : std::max<int64_t>(1, kBeamOfASmallGpu / config.beam);
    o.sentences *= more;
    o.source_rows *= more;
    return o;
  }
  const int64_t rows = std::max(kRowsOfAThread, kRowsOfAll / cpu_threads());
  o.sentences = std::clamp<int64_t>(rows / config.beam, 1, all);
  o.source_rows = std::max(o.max_source, o.source_rows * o.sentences / all);
  return o;
}

Alignment align(std::span<const float> attention, size_t source_tokens) {
  Alignment pairs;
  if (source_tokens < 2) return pairs;
  for (size_t row = 0; (row + 1) * source_tokens < attention.size(); ++row) {
    const std::span<const float> weights =
        attention.subspan(row * source_tokens, source_tokens - 1);
    pairs.emplace_back(std::ranges::max_element(weights) - weights.begin(), row);
  }
  return pairs;
}

int64_t few_lines(const TranslateConfig& config, const model::TranslatorOptions& options) {
  return std::clamp<int64_t>(kFewRowsOfAThread / config.beam, 1, options.sentences);
}

LineTranslator::LineTranslator(const LoadedModel& model, const TranslateConfig& config,
                               const LineOptions& options)
    : LineTranslator(model, line_translator_options(model, config, options), config, options) {}

LineTranslator::LineTranslator(const LoadedModel& model, const model::TranslatorOptions& o,
                               const TranslateConfig& config, LineOptions options)
    : target_(model.tokenizers.target),
      source_eos_(model.tokenizers.source.eos_id()),
      frame_(model.tokenizers.source.sentence_begin().size() +
             model.tokenizers.source.sentence_end().size()),
      options_(std::move(options)),
      places_(o.sentences),
      workers_(ensemble_of(model), o, model.store->device().is_cuda() ? 1 : cpu_threads(),
               few_lines(config, o)) {}

void LineTranslator::warm_up(int64_t lines) {
  const int64_t most = std::clamp<int64_t>(lines, 1, places_);
  workers_.give(std::vector<TranslationTask>(static_cast<size_t>(most),
                                             {.source = {source_eos_, source_eos_}}));
  while (workers_.held() > 0) workers_.take();
}

void LineTranslator::add(std::vector<int32_t> source, const std::vector<int32_t>& prefix,
                         std::vector<std::vector<int32_t>> phrases) {
  source_tokens_.emplace(added_, source.size() > frame_ ? source.size() : 0);
  model::SearchOptions search = options_.search;
  // A prefix that is text begins so already.
  const std::span<const int32_t> begin = target_.sentence_begin();
  if (prefix.empty() && search.prefix.empty()) search.prefix.assign(begin.begin(), begin.end());
  search.prefix.insert(search.prefix.end(), prefix.begin(), prefix.end());
  search.phrases = std::move(phrases);
  if (search.draw) search.draw->stream = static_cast<int32_t>(added_);
  given_lines_.push_back({added_++, std::move(source), std::move(search)});
}

bool LineTranslator::idle() const noexcept { return source_tokens_.empty(); }

void LineTranslator::take(int64_t line, std::vector<model::Hypothesis> found) {
  if (found.empty()) throw model::NonFiniteScores("translate");
  const size_t tokens = source_tokens_.extract(line).mapped();
  // A line without words has one translation, itself, and that for certain.
  const bool words = tokens > 1;
  const auto most = words ? static_cast<size_t>(options_.search.nbest) : 1;
  if (!words) {
    model::Hypothesis& h = found.front();
    if (!h.token_log_probabilities.empty()) {
      h.attention.resize(h.attention.size() / h.token_log_probabilities.size());
      h.token_log_probabilities = {0.0};
    }
    h.ids.clear();
    h.log_probability = h.score = 0.0;
  }
  std::vector<Translation>& out = done_[line];
  for (model::Hypothesis& h : std::span(found).first(std::min(most, found.size()))) {
    out.push_back({.text = decode_translation(target_, tokens, h.ids),
                   .log_probability = h.log_probability,
                   .score = h.score,
                   .ids = std::move(h.ids),
                   .token_log_probabilities = std::move(h.token_log_probabilities),
                   .attention = std::move(h.attention)});
  }
}

void LineTranslator::advance(const Sink& sink) {
  if (!given_lines_.empty()) workers_.give(std::exchange(given_lines_, {}));
  if (!idle()) {
    for (TranslationResult& r : workers_.take()) take(r.line, std::move(r.found));
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
    translator.advance([&](std::span<const Translation> t) { out.push_back(t.front().text); });
  }
  return out;
}

}  // namespace saturate::train
