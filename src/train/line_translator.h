// SPDX-License-Identifier: Apache-2.0
// Translates lines while more of them come: what `translate` and `eval` share.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "train/translation.h"
#include "train/translation_workers.h"

namespace saturate::train {

// Source ids of a line, cut to what the model takes; warns of a longer one, which it calls `number`
// (from 1). May be called from another thread than the translator's.
std::vector<int32_t> encode_source(const data::Tokenizer& source, int64_t limit,
                                   std::string_view line, int64_t number);

// Ids of a phrase that a translation is to hold (model::SearchOptions), without what begins a text; none for a
// blank one. `place` says where it stands, for the error. Errors: invalid_argument for a character that the
// vocabulary lacks.
std::vector<int32_t> encode_phrase(const data::Tokenizer& target, std::string_view phrase,
                                   const std::string& place);

struct Translation {
  std::string text;
  double log_probability = 0;  // natural logarithm, a sum over its tokens and end-of-sentence
  double score = 0;            // log_probability / length^length_penalty
  std::vector<int32_t> ids;    // without end-of-sentence, with the prefix
  std::vector<double> token_log_probabilities;  // of each id, then of end-of-sentence
  std::vector<float> attention = {};            // as model::Hypothesis, where LineOptions want it
};

// Tokens of a source and of its translation that belong together, both from 0: with each token of the
// translation the one of the source that it looks at most. Neither end-of-sentence counts.
using Alignment = std::vector<std::pair<int64_t, int64_t>>;
// Of the attention of model::Hypothesis to so many tokens of the source.
Alignment align(std::span<const float> attention, size_t source_tokens);

// What all lines of one text want.
struct LineOptions {
  model::SearchOptions search = {};  // its prefix comes before that of the line; a draw's stream is
                                     // the number of the line
  std::vector<int32_t> suppressed = {};
  std::shared_ptr<const model::Shortlist> shortlist = {};
  bool same_bits = false;  // this and what follows: see model::TranslatorOptions
  bool attention = false;
  int64_t attention_layer = -1, attention_head = -1;
};

// How many lines a translator of this model has under way at most, and what it plans for them: on
// the CPU one of cpu_threads() that work side by side.
model::TranslatorOptions line_translator_options(const LoadedModel& model,
                                                 const TranslateConfig& config,
                                                 const LineOptions& lines);
// Lines that a thread of the CPU takes while others have none: a step costs nearly as much.
int64_t few_lines(const TranslateConfig& config, const model::TranslatorOptions& options);

/// Lines go in as they come and translations come out in the order of the lines, an empty one for
/// an empty line. The next line begins as soon as one has ended. On the CPU each of cpu_threads()
/// threads translates lines of its own; on a GPU one thread does nothing but that, while the caller's
/// makes text of what is done. What a line becomes depends neither on the others nor on the threads
/// (GPU: to rounding, unless same_bits). To be called from one thread.
class LineTranslator {
 public:
  // Of one line, the best first: `nbest`, or as many as the search had ended.
  using Sink = std::function<void(std::span<const Translation>)>;

  // With the models that translate with it. What their pointers point to outlives this.
  LineTranslator(const LoadedModel& model, const TranslateConfig& config,
                 const LineOptions& options = {});

  // Makes the plan for so many short lines together and loads what it runs; the weights may be
  // any. Of a GPU.
  void warm_up(int64_t lines);

  // The next line, from encode_source, ids that its translation begins with, and phrases that it holds
  // (model::SearchOptions). It begins with the
  // next advance(), so that what is translated together is a function of the lines alone; what is
  // wrong with it is said there.
  void add(std::vector<int32_t> source, const std::vector<int32_t>& prefix = {},
           std::vector<std::vector<int32_t>> phrases = {});
  // No line waits or is being translated.
  bool idle() const noexcept;
  // Lines added whose translation has not been given away.
  int64_t held() const noexcept { return added_ - given_; }

  // Waits until a line has been translated, then gives `sink` each translation whose turn has come:
  // those of all lines before it were given. Nothing when idle. Errors: those of model::Translator
  // and of its add(), device, out_of_memory, model::NonFiniteScores.
  void advance(const Sink& sink);

 private:
  LineTranslator(const LoadedModel& model, const model::TranslatorOptions& o,
                 const TranslateConfig& config, LineOptions options);
  void take(int64_t line, std::vector<model::Hypothesis> found);

  const data::Tokenizer target_;
  const int32_t source_eos_;
  const size_t frame_;  // tokens of a line without words
  const LineOptions options_;
  const int64_t places_;  // lines under way at most
  TranslationWorkers workers_;
  std::vector<TranslationTask> given_lines_;          // the workers have not got them yet
  std::map<int64_t, size_t> source_tokens_;           // by line, of those not yet translated
  std::map<int64_t, std::vector<Translation>> done_;  // by line, not yet given away
  int64_t added_ = 0, given_ = 0;
};

// All lines, in their order. Warns of each that is too long for the model.
std::vector<std::string> translate_lines(const LoadedModel& model, const TranslateConfig& config,
                                         std::span<const std::string> lines);

}  // namespace saturate::train
