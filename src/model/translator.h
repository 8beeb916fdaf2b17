// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "kernels/decode/token_draw.h"
#include "model/shortlist.h"
#include "model/transformer.h"

namespace saturate::model {

// Of all sentences that one translator gets; memory is planned for it.
struct TranslatorOptions {
  int64_t sentences = 64;      // at most, under way at a time
  int64_t source_rows = 2048;  // token budget of their sources together; as many again and more
                               // may wait, encoded
  int64_t max_source = 256;    // longest source in tokens, end-of-sentence included
  int64_t max_target = 256;    // longest translation in tokens
  float length_factor =
      2.0f;  // a translation ends at length_factor * source + length_offset tokens,
  int64_t length_offset = 20;   // or at max_target
  int beam = 5;                 // 1: greedy
  float length_penalty = 1.0f;  // the best has the largest log-probability / length^length_penalty
  bool graph = true;            // replay the step as a CUDA graph
  // A GPU chooses its kernels by the number of rows, and so the last bits of a result. With this it
  // always computes the rows of `sentences`, used or not: what a sentence becomes is then the same
  // bits, whatever is translated beside it and whenever it came. On the CPU it is without.
  bool same_bits = false;
  std::vector<int32_t> suppressed = {};  // ids that no translation may hold
  bool sampling = false;                 // whether a sentence may ask for draws
  // Whether hypotheses come with their attention to the source: the mean weights of the heads of one
  // layer of the decoder, -1 the last; of one head alone, -1 all. Takes 4 bytes for each position of
  // every hypothesis and of the longest source.
  bool attention = false;
  int64_t attention_layer = -1, attention_head = -1;
  // What translations may hold; null: everything. On the CPU, where weights are packed.
  std::shared_ptr<const Shortlist> shortlist = {};
};

// What one sentence wants of its search. What is changed by it is the distribution of the next token,
// before log-probabilities are taken (kernels/decode/token_rules.h); a token that the prefix gives
// adds nothing to score or length. Both as CTranslate2 4.
struct SearchOptions {
  int nbest = 1;                             // so many of the best must be known; at most the beam
  std::vector<int32_t> prefix = {};          // ids that the translation begins with; a forced first
                                             // token is a prefix of one
  std::optional<float> length_penalty = {};  // else the translator's
  float repetition_penalty = 1.0f;           // above 1: what was said becomes less likely
  int64_t no_repeat_ngram = 0;               // n: no n tokens twice
  int64_t min_length = 0;                    // tokens behind the prefix, without end-of-sentence
  int64_t max_length = 0;  // the same, at most; 0: as the translator's options say
  // The beam is searched in so many groups of beam / groups hypotheses, which take no places from each
  // other; at most the beam.
  int groups = 1;
  // What a token loses in a group, in log-probability, for each time that earlier groups have chosen it
  // at the same position. Scores are without it.
  float diversity = 0.0f;
  // The groups begin, behind the prefix, with the likeliest tokens there, one each, and each gives its
  // best translation alone.
  bool alternatives = false;
  // Each group draws one translation; a draw is a function of these numbers, the group's and the
  // position's. `sample` counts the groups. Needs TranslatorOptions::sampling.
  std::optional<kernels::TokenDraw> draw = {};
  // Ids that the translation holds one after the other, each of these phrases somewhere; its prefix counts,
  // and phrases may overlap. On the CPU, in one group, without draws, alternatives and no_repeat_ngram. Half of the
  // beam is kept for hypotheses that have not ended, so `nbest` finds at most the other half for certain.
  std::vector<std::vector<int32_t>> phrases = {};
};

// A translation that beam search has ended.
struct Hypothesis {
  std::vector<int32_t> ids;    // without end-of-sentence, with the prefix
  double log_probability = 0;  // sum over its tokens, end-of-sentence counted
  double score = 0;            // log_probability / length^length_penalty
  // Of each id and then of end-of-sentence; they add up to log_probability, 0 for those of a prefix.
  std::vector<double> token_log_probabilities = {};
  // Of each id and then of end-of-sentence, how much of it goes to each token of the source, its
  // end-of-sentence included: (ids + 1, source tokens). Empty where nobody wants it.
  std::vector<float> attention = {};
};

// One of the models that translate together, and what it counts among them: a number above 0, of which the sum
// of all is a part. Both outlive the translator.
struct EnsembleModel {
  const Transformer* model = nullptr;
  const ParameterStore* store = nullptr;  // allocated; of it `model` declared its parameters
  double weight = 1;
};

/// Translates token ids with a key/value cache. Sentences are under way side by side; when one ends,
/// the next takes its place in the middle of the others, and what it becomes does not depend on them
/// (CPU: bit for bit; GPU: to the rounding of matrix products, or bit for bit with same_bits). Memory
/// is planned once; the store's weights may change while nothing is under way. One thread at a time.
///
/// All at once: translate() and search(). As they come, which is what a server does in the one thread
/// that owns the translator:
///
///   for (;;) {
///     for (auto& r : requests_that_came(translator.held() == 0)) {  // waits when there is nothing to do
///       try { r.ticket = translator.add(r.ids, r.options); }
///       catch (const Error& e) { r.refuse(e); }                     // too long, a bad option: a 400
///     }
///     for (auto& r : requests_that_went_away()) translator.cancel(r.ticket);
///     translator.step([&](int64_t ticket, std::vector<Hypothesis> found) { answer(ticket, found); });
///   }
///
/// step() is one token of all sentences: some milliseconds, so that is how soon a new sentence begins
/// while there is room. room() says whether an added sentence would begin at the next step; what is
/// added beyond waits, in the order of adding, and a server that bounds its queue looks at
/// held(). Nothing here touches a text: ids in, ids out (data::Tokenizer; train/line_translator.h).
class Translator {
 public:
  // `store` is allocated and outlives this; `model` declared its parameters in it.
  // Errors: invalid_argument naming the option; out_of_memory.
  Translator(const Transformer& model, const ParameterStore& store,
             const TranslatorOptions& options);
  // Several models as one, at most kernels::kMaxModels: what a token is worth is the weighted mean of the
  // log-probabilities that each gives it (kernels/decode/mean_logits.h), each with its own caches. They may
  // differ in all but vocabularies, special ids and device; attention is that of the first. Errors: as above;
  // invalid_argument naming what differs.
  Translator(std::span<const EnsembleModel> models, const TranslatorOptions& options);
  ~Translator();

  // A source with its end-of-sentence id joins those that wait; returns the number by which its result
  // comes, never given before. Errors: invalid_argument naming what is empty, too long, no id, or an
  // option out of its range; nothing is added then.
  int64_t add(std::vector<int32_t> source, const SearchOptions& options = {});

  // Of a sentence: what its search had ended when it was over, the largest score first. Empty: no
  // token had a score that is a number (weights or sums that are too large).
  using OnDone = std::function<void(int64_t ticket, std::vector<Hypothesis> found)>;

  // Lets sentences that wait into places that are free, does one step of all that are under way, and
  // hands over those that have ended; on a GPU those of the step before, while this one runs. `done`
  // may call add() and cancel(). Returns at once when nothing is held. Errors: out_of_memory, device;
  // what was held is lost then.
  void step(const OnDone& done);

  // The sentence gets no result; its place is free at the next step. No effect on one that has ended.
  void cancel(int64_t ticket);

  int64_t held() const noexcept;  // sentences added and not yet handed over or cancelled
  int64_t room() const noexcept;  // places that neither a sentence under way nor a waiting one has

  // The best translation of each source, in their order. Nothing else may be held. Errors: those of
  // add(), naming the source; NonFiniteScores (finite.h).
  std::vector<std::vector<int32_t>> translate(std::span<const std::vector<int32_t>> sources);
  // All that the search of each source had ended, at least one and at most the beam, the best first.
  std::vector<std::vector<Hypothesis>> search(std::span<const std::vector<int32_t>> sources,
                                              const SearchOptions& options = {});

  const TranslatorOptions& options()
      const noexcept;  // as they are used: cut to what the model takes

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::model
