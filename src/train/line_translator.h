// SPDX-License-Identifier: Apache-2.0
// Translates lines while more of them come: what `translate` and `eval` share.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
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

struct Translation {
  std::string text;
  double log_probability = 0;  // natural logarithm, a sum over its tokens and end-of-sentence
  double score = 0;            // log_probability / length^length_penalty
};

/// Lines go in as they come and translations come out in the order of the lines, an empty one for
/// an empty line. A batch is the oldest line that waits and those nearest to it in length: so the
/// output goes on from the first batch, and a step of decoding is seldom for a few long sentences
/// alone. Plans are kept. On the CPU each of cpu_threads() threads translates batches of its own. What
/// a line becomes depends neither on the batch nor on the threads (GPU: to rounding). To be called
/// from one thread.
class LineTranslator {
 public:
  // Of one line, the best first: `nbest`, or as many as the search had ended.
  using Sink = std::function<void(std::span<const Translation>)>;

  // What the pointers of `model` point to outlives this. Errors: invalid_argument, out_of_memory.
  // nbest 0: the best alone, without its scores.
  LineTranslator(const LoadedModel& model, const TranslateConfig& config, int64_t nbest = 0);

  // Makes the plan for a batch of so many short lines and loads what it runs; the weights may be
  // any. Of a GPU.
  void warm_up(int64_t lines);

  void add(std::vector<int32_t> source);  // the next line, from encode_source
  // No line waits or is being translated.
  bool idle() const noexcept { return waiting_.empty() && !(workers_ && workers_->held() > 0); }
  // Lines added whose translation has not been given away.
  int64_t held() const noexcept { return added_ - given_; }

  // Waits until one batch is translated, then gives `sink` each translation whose turn has come:
  // those of all lines before it were given. Nothing when idle. Errors: device, out_of_memory.
  void translate_batch(const Sink& sink);

 private:
  int64_t lines_of_a_batch() const;
  TranslationBatch choose();
  std::vector<Translation> texts(size_t source_tokens, std::vector<model::Hypothesis>& found) const;

  const data::Tokenizer target_;
  const int32_t source_eos_;
  const size_t nbest_;
  const int64_t most_lines_, most_rows_;  // of a batch: lines, and their tokens together
  const int64_t few_lines_;               // a smaller batch wastes what reading the weights costs
  std::optional<model::Translator> translator_;       // on a GPU
  std::optional<TranslationWorkers> workers_;         // on the CPU
  std::map<int64_t, std::vector<int32_t>> sources_;   // by line, of those that wait
  std::set<std::pair<int64_t, int64_t>> waiting_;     // (tokens, line)
  std::map<int64_t, std::vector<Translation>> done_;  // by line, not yet given away
  int64_t added_ = 0, given_ = 0;
};

// All lines, in their order. Warns of each that is too long for the model.
std::vector<std::string> translate_lines(const LoadedModel& model, const TranslateConfig& config,
                                         std::span<const std::string> lines);

}  // namespace saturate::train
