// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace saturate::model {

struct TranslatorOptions {
  int64_t sentences = 64;      // at most, in one batch
  int64_t source_rows = 2048;  // token budget of one batch's sources
  int64_t max_source = 256;    // longest source in tokens, end-of-sentence included
  int64_t max_target = 256;    // longest translation in tokens
  float length_factor = 2.0f;  // a translation ends at length_factor * source + length_offset tokens,
  int64_t length_offset = 20;  // or at max_target
  int beam = 5;                // 1: greedy
  float length_penalty = 1.0f; // the best has the largest log-probability / length^length_penalty
  bool graph = true;           // replay the step as a CUDA graph
  // Plans for sources of at most 64, 256, ... max_source tokens instead of one for max_source: for text
  // of which nothing is known. What a plan may hold for long sentences, most text never needs.
  bool plan_by_length = false;
};

// A translation that beam search has ended.
struct Hypothesis {
  std::vector<int32_t> ids;    // without end-of-sentence
  double log_probability = 0;  // sum over its tokens, end-of-sentence counted
  double score = 0;            // log_probability / length^length_penalty
};

/// Translates token ids with a key/value cache. Everything is planned when a shape is first needed, and
/// kept. The store's weights may change between calls; nothing of them is kept. One thread at a time.
class Translator {
 public:
  // `store` is allocated and outlives this; `model` declared its parameters in it.
  Translator(const Transformer& model, const ParameterStore& store, const TranslatorOptions& options);
  ~Translator();

  // Sources with their end-of-sentence id; translations without it, in the order of the sources. A
  // sentence's result does not depend on the sentences it shares a batch with (CPU: exactly; GPU: to the
  // rounding of matrix products). Errors: invalid_argument naming the source that is empty or too long;
  // NonFiniteScores (finite.h).
  std::vector<std::vector<int32_t>> translate(std::span<const std::vector<int32_t>> sources);

  // All that the search of each source had ended when it was over, at least one and at most `beam`,
  // the largest score first: that is the one translate() gives. Errors: those of translate().
  std::vector<std::vector<Hypothesis>> search(std::span<const std::vector<int32_t>> sources);

  // Sources that are no more than this are translated as one batch, if each of them fits.
  int64_t batch_sentences() const noexcept;
  int64_t batch_rows() const noexcept;  // their tokens together

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace saturate::model
